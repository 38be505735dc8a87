"""Pretrain on a wide distribution, checkpoint, continue on the target distribution with a new learning rate."""
import io
import torch
from torch import nn
import torch.nn.functional as F


def data(n, shift, gen):
    x = torch.randn(n, 6, generator=gen) + shift
    y = torch.sin(x[:, :3]).sum(1) + 0.3 * x[:, 3] * x[:, 4]
    return x, y.unsqueeze(1) + 0.05 * torch.randn(n, 1, generator=gen)


def make_model():
    return nn.Sequential(nn.Linear(6, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))


def loop(model, optimizer, x, y, steps, gen, decay):
    gamma = decay ** (1 / steps)
    for step in range(steps):
        idx = torch.randint(len(x), (32,), generator=gen)
        loss = F.mse_loss(model(x[idx]), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= gamma
    print("  last batch loss", loss.item())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gen = torch.Generator().manual_seed(5)
    x0, y0 = data(1000, 0.0, gen)
    x1, y1 = data(600, 1.5, gen)
    vx, vy = data(600, 1.5, gen)

    print("phase one")
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loop(model, optimizer, x0, y0, 500, gen, decay=1e-4)
    store = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, store)

    print("phase two")
    store.seek(0)
    ckpt = torch.load(store)
    model = make_model()
    model.load_state_dict(ckpt["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(ckpt["optimizer"])
    loop(model, optimizer, x1, y1, 500, gen, decay=1e-2)

    with torch.no_grad():
        print("RESULT", F.mse_loss(model(vx), vy).item())


main()
