"""bfloat16 model, float32 master weights kept by hand, lookahead on top."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(12)
torch.set_num_threads(1)
DT = torch.bfloat16

model = nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(DT)
master = [p.detach().float().clone().requires_grad_(True) for p in model.parameters()]
slow = [m.detach().clone() for m in master]
opt = torch.optim.Adam(master, lr=3e-3)


def f(x):
    return torch.sin(x[:, :1] * 2) + x[:, 1:2] * x[:, 2:3]


def sync_model():
    with torch.no_grad():
        for p, m in zip(model.parameters(), master):
            p.copy_(m)


for step in range(400):
    x = torch.randn(64, 4)
    loss = F.mse_loss(model(x.to(DT)).float(), f(x))
    model.zero_grad(set_to_none=True)
    loss.backward()
    for p, m in zip(model.parameters(), master):
        m.grad = p.grad.float()
    nn.utils.clip_grad_norm_(master, 1.0)
    opt.step()
    if (step + 1) % 5 == 0:
        with torch.no_grad():
            for m, s in zip(master, slow):
                s.add_(m - s, alpha=0.5)
                m.copy_(s)
    sync_model()
    if step % 100 == 0:
        print(step, loss.item())

with torch.no_grad():
    x = torch.randn(2000, 4)
    print("result:", F.mse_loss(model(x.to(DT)).float(), f(x)).item())
