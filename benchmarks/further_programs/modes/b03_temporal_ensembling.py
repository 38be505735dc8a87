"""Temporal ensembling (semi-supervised) on two interleaved rings."""
import argparse
import math
import torch
from torch import nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("--epochs", type=int, default=60)
ap.add_argument("--batch", type=int, default=60)
ap.add_argument("--alpha", type=float, default=0.6)
ap.add_argument("--weight", type=float, default=6.0)
ap.add_argument("--labels", type=int, default=16)
cfg = ap.parse_args([])
torch.manual_seed(2)
torch.set_num_threads(1)


def moons(n):
    y = torch.arange(n) % 2
    t = math.pi * torch.rand(n)
    x = torch.stack([torch.where(y == 0, t.cos(), 1 - t.cos()), torch.where(y == 0, t.sin(), 0.5 - t.sin())], 1)
    return 2 * x + 0.15 * torch.randn(n, 2), y


class Memory:
    """Exponential average of past predictions with start-up correction."""

    def __init__(self, n, k, alpha):
        self.z = torch.zeros(n, k)
        self.alpha, self.count = alpha, 0

    def target(self, rows):
        return self.z[rows] / (1 - self.alpha ** self.count) if self.count else self.z[rows]

    def write(self, rows, p):
        self.z[rows] = self.alpha * self.z[rows] + (1 - self.alpha) * p


x, y = moons(600)
vx, vy = moons(1000)
labelled = torch.zeros(len(x), dtype=torch.bool)
labelled[:cfg.labels] = True
net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
memory = Memory(len(x), 2, cfg.alpha)

for epoch in range(cfg.epochs):
    net.train()
    ramp = cfg.weight * math.exp(-5 * (1 - min(epoch / 20, 1)) ** 2) if epoch else 0.0
    perm = torch.randperm(len(x))
    for b in range(0, len(x), cfg.batch):
        idx = perm[b:b + cfg.batch]
        rows = torch.arange(b, b + len(idx))
        logits = net(x[idx] + 0.1 * torch.randn(len(idx), 2))
        prob = logits.softmax(-1)
        loss = ramp * F.mse_loss(prob, memory.target(rows))
        mask = labelled[idx]
        if mask.any():
            loss = loss + F.cross_entropy(logits[mask], y[idx][mask], reduction="sum") / 4
        opt.zero_grad()
        loss.backward()
        opt.step()
        memory.write(rows, prob.detach())
    memory.count += 1

net.eval()
with torch.no_grad():
    out = net(vx)
print("accuracy", (out.argmax(1) == vy).float().mean().item())
print("RESULT", F.mse_loss(out.softmax(-1), F.one_hot(vy, 2).float()).item())
