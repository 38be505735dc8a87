"""Head first, then the top of the backbone, then nothing more: the stem stays frozen on purpose."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(17)

A = torch.randn(20, 6) / 3


def source(n):
    x = torch.randn(n, 20)
    return x, torch.sin(x @ A)


def target(n):
    x = torch.randn(n, 20)
    s = torch.sin(x @ A)
    return x, (s[:, 0] * s[:, 1] + s[:, 2] > 0).long()


stem = nn.Sequential(nn.Linear(20, 96), nn.GELU())
top = nn.Sequential(nn.Linear(96, 64), nn.GELU())
pre_head = nn.Linear(64, 6)
opt = torch.optim.Adam([*stem.parameters(), *top.parameters(), *pre_head.parameters()], lr=2e-3)
for _ in range(700):
    x, s = source(64)
    loss = F.mse_loss(pre_head(top(stem(x))), s)
    opt.zero_grad()
    loss.backward()
    opt.step()
print("pretraining", loss.item())

head = nn.Linear(64, 2)
model = nn.Sequential(stem, top, head)
for p in (*stem.parameters(), *top.parameters()):
    p.requires_grad_(False)
    p.grad = None
opt = torch.optim.AdamW(head.parameters(), lr=5e-3)
x, y = target(800)
for epoch in range(20):
    if epoch == 6:
        for p in top.parameters():
            p.requires_grad_(True)
        opt.add_param_group({"params": list(top.parameters()), "lr": 1e-3})
        print("top unfrozen")
    for idx in torch.randperm(len(x)).split(32):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
assert all(p.grad is None for p in stem.parameters())

vx, vy = target(2000)
with torch.no_grad():
    print("RESULT", F.cross_entropy(model(vx), vy).item())
