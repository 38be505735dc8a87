"""Batches hold a changing number of usable rows. Gradients are kept over batches until enough rows are in,
only then a step is made (divided by the rows)."""
import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)


def rows(n, gen):
    x = torch.randn(n, 10, generator=gen)
    y = torch.tanh(x[:, 0] + x[:, 1] * x[:, 2]) - 0.5 * x[:, 3]
    usable = torch.rand(n, generator=gen) < torch.rand(1, generator=gen) * 0.9
    return x, y + 0.05 * torch.randn(n, generator=gen), usable


class PatientOptimizer:
    def __init__(self, params, enough, **kw):
        self.params = list(params)
        self.inner = torch.optim.Adam(self.params, **kw)
        self.enough, self.rows, self.steps = enough, 0, 0

    def add(self, rows):
        self.rows += rows
        if self.rows < self.enough:
            return
        for p in self.params:
            p.grad /= self.rows
        self.inner.step()
        self.inner.zero_grad()
        self.rows = 0
        self.steps += 1


def main():
    torch.manual_seed(67)
    gen = torch.Generator().manual_seed(67)
    net = nn.Sequential(nn.Linear(10, 64), nn.Mish(), nn.Linear(64, 64), nn.Mish(), nn.Linear(64, 1))
    opt = PatientOptimizer(net.parameters(), enough=96, lr=4e-3)
    empty = 0
    for k in range(2600):
        x, y, usable = rows(40, gen)
        if not usable.any():
            empty += 1
            continue
        loss = F.mse_loss(net(x[usable]).squeeze(-1), y[usable], reduction="sum")
        loss.backward()
        opt.add(int(usable.sum()))
        if k % 400 == 0:
            print(f"{k:5d} steps {opt.steps:4d} loss {loss.item() / int(usable.sum()):.4f} empty {empty}")
    x, y, _ = rows(2000, gen)
    with torch.no_grad():
        print("RESULT", F.mse_loss(net(x).squeeze(-1), y).item())


main()
