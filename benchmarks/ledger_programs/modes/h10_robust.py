"""Adversarial training with a few PGD steps."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
EPS, ALPHA, STEPS = 0.08, 0.04, 3


def pgd(model, x, y):
    was = model.training
    model.eval()
    for p in model.parameters():
        p.requires_grad_(False)
    delta = torch.empty_like(x).uniform_(-EPS, EPS)
    for _ in range(STEPS):
        delta.requires_grad_(True)
        loss = F.cross_entropy(model(x + delta), y)
        (g,) = torch.autograd.grad(loss, delta)
        delta = (delta.detach() + ALPHA * g.sign()).clamp(-EPS, EPS)
    for p in model.parameters():
        p.requires_grad_(True)
    model.train(was)
    return (x + delta).detach()


w = torch.randn(16, 3)


def make(n):
    x = torch.randn(n, 16)
    return x, (x @ w + 0.5 * torch.randn(n, 3)).argmax(-1)


tx, ty = make(1500)
vx, vy = make(1000)
model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2),
                      nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
model.train()
for epoch in range(10):
    for idx in torch.randperm(1500).split(75):
        adv = pgd(model, tx[idx], ty[idx])
        loss = F.cross_entropy(model(adv), ty[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 0:
        print(epoch, loss.item())

model.eval()
vadv = pgd(model, vx, vy)
with torch.no_grad():
    print("clean", F.cross_entropy(model(vx), vy).item())
    print("result:", F.cross_entropy(model(vadv), vy).item())
