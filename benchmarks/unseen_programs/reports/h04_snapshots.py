"""Snapshot ensemble: the rate goes up again at every restart, the ends are kept."""
import copy

import torch
from torch import nn

torch.set_num_threads(1)


def spirals(n, seed):
    gen = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=gen)
    r = torch.rand(n, generator=gen)
    a = 4.5 * r + y * 2.0944 + 0.18 * torch.randn(n, generator=gen)
    return torch.stack([r * a.cos(), r * a.sin()], 1), y


def mlp():
    return nn.Sequential(nn.Linear(2, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 3))


def ensemble_nll(members, x, y):
    with torch.no_grad():
        probs = torch.stack([m(x).softmax(1) for m in members]).mean(0)
    return nn.functional.nll_loss(probs.log(), y).item()


def main(cycles=5, cycle_steps=200):
    torch.manual_seed(30)
    x, y = spirals(1500, 1)
    xv, yv = spirals(800, 2)
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=cycle_steps, eta_min=1e-3)
    members = []
    for cycle in range(cycles):
        first = last = None
        for step in range(cycle_steps):
            idx = torch.randint(0, len(x), (64,))
            loss = nn.functional.cross_entropy(net(x[idx]), y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            first = loss.item() if first is None else first
            last = loss.item()
        members.append(copy.deepcopy(net).eval())
        print(f"cycle {cycle} first {first:.3f} last {last:.3f} ensemble {ensemble_nll(members, xv, yv):.4f}")
    print("RESULT", ensemble_nll(members, xv, yv))


if __name__ == "__main__":
    main()
