import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

TOTAL_STEPS = 400
CKPT = os.path.join(tempfile.mkdtemp(), "last.pt")


def build():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)

    def ramp(step):
        if step < 20:
            return (step + 1) / 20
        return max(0.0, (TOTAL_STEPS - step) / (TOTAL_STEPS - 20))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, ramp)
    return model, optimizer, scheduler


def batch(gen, n=32, noise=0.6):
    x = torch.randn(n, 8, generator=gen)
    y = (x[:, 0] * x[:, 1]).tanh() + torch.sin(2 * x[:, 2]) + 0.5 * x[:, 3]
    return x, (y + noise * torch.randn(n, generator=gen)).unsqueeze(1)


def save(path, model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)


def run(until, resume=None):
    model, optimizer, scheduler = build()
    step = 0
    if resume is not None:
        ckpt = torch.load(resume)
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        step = ckpt["step"]
        print(f"resumed from step {step}")
    gen = torch.Generator().manual_seed(100 + step)
    model.train()
    while step < until:
        x, y = batch(gen)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    save(CKPT, model, optimizer, step)
    return model


run(240)
model = run(TOTAL_STEPS, resume=CKPT)
model.eval()
x, y = batch(torch.Generator().manual_seed(5), 1500, noise=0.0)
with torch.no_grad():
    print(f"result: {F.mse_loss(model(x), y).item():.4f}")
