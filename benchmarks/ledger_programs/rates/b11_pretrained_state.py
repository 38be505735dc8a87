import io
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(71)
torch.set_num_threads(1)


def make_model():
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6))


def domain(seed):
    g = torch.Generator().manual_seed(seed)
    c = torch.randn(6, 16, generator=g)

    def draw(n):
        y = torch.randint(0, 6, (n,))
        return c[y] * 0.6 + 0.7 * torch.randn(n, 16), y
    return draw


def pretrain(cfg, draw):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg["steps"], eta_min=cfg["lr"] * 1e-3)
    for step in range(cfg["steps"]):
        x, y = draw(64)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sched.step()
    print(f"pretrain done, loss {loss.item():.4f}")
    buf = io.BytesIO()
    torch.save({"state_dict": model.state_dict(), "optimizer": optimizer.state_dict(), "cfg": cfg}, buf)
    buf.seek(0)
    return buf


def finetune(buf, cfg, draw):
    ckpt = torch.load(buf)
    model = make_model()
    model.load_state_dict(ckpt["state_dict"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    optimizer.load_state_dict(ckpt["optimizer"])
    for step in range(cfg["steps"]):
        x, y = draw(64)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"finetune step {step} loss {loss.item():.4f}")
    return model


buf = pretrain({"lr": 3e-3, "steps": 250}, domain(1))
target = domain(2)
model = finetune(buf, {"lr": 1e-3, "steps": 250}, target)
model.eval()
x, y = target(1000)
with torch.no_grad():
    print(f"result: {F.cross_entropy(model(x), y).item():.4f}")
