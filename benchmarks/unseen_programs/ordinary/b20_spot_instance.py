"""Molecular solubility regression on a spot instance: the job is pre-empted and picks up its checkpoint."""
import math
import os
import tempfile
import torch
import torch.nn as nn

torch.set_num_threads(1)
TOTAL, WARMUP = 600, 30
g = torch.Generator().manual_seed(59)
basis = torch.randn(32, 6, generator=g)


def fingerprints(n):
    x = (torch.rand(n, 32, generator=g) < 0.3).float()
    z = x @ basis * 0.4
    return x, (0.5 * torch.sin(z[:, 0]) + torch.tanh(z[:, 2]) + 0.5 * z[:, 3]).unsqueeze(1)


X, Y = fingerprints(6000)
Y_noisy = Y + 1.0 * torch.randn(Y.shape, generator=g)
X_val, Y_val = fingerprints(500)


def rate(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - WARMUP) / (TOTAL - WARMUP))))


def train(path, until):
    torch.manual_seed(61)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.04, weight_decay=1e-4)
    start = 0
    if os.path.exists(path):
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start = checkpoint["step"]
        print("resumed at step", start)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)

    for step in range(start, until):
        idx = torch.randint(0, len(X), (24,))
        loss = nn.functional.mse_loss(model(X[idx]), Y_noisy[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}")

    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": until}, path)
    return model


with tempfile.TemporaryDirectory() as folder:
    ckpt = os.path.join(folder, "last.pt")
    train(ckpt, until=420)
    model = train(ckpt, until=TOTAL)

with torch.no_grad():
    print("RESULT", nn.functional.mse_loss(model(X_val), Y_val).item())
