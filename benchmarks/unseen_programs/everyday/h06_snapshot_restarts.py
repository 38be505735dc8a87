"""Forecast river levels with warm restarts, snapshots and an average of the snapshots."""
import copy
import math

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint

torch.set_num_threads(1)
torch.manual_seed(106)

HISTORY, CYCLES, CYCLE_STEPS, BATCH = 48, 4, 80, 48


def levels(length):
    t = torch.arange(length).float()
    tide = torch.sin(2 * math.pi * t / 12.4) + 0.5 * torch.sin(2 * math.pi * t / 24.8 + 1)
    flow = torch.zeros(length)
    level = 0.0
    rain = torch.relu(torch.randn(length) - 1.6) * 2
    for i in range(length):
        level = 0.97 * level + rain[i].item() * 0.3
        flow[i] = level
    return tide * (1 + 0.2 * flow) + flow + 0.05 * torch.randn(length)


class Stage(nn.Module):
    """Without dropout, so that the recomputation needs no generator state."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(),
                                 nn.Linear(2 * width, width))

    def forward(self, h):
        return h + self.net(self.norm(h))


class LevelNet(nn.Module):
    def __init__(self, width=48, depth=2):
        super().__init__()
        self.inp = nn.Linear(HISTORY, width)
        self.stages = nn.ModuleList([Stage(width) for _ in range(depth)])
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        last = x[:, -1:]
        h = self.inp(x - last)
        for stage in self.stages:
            if torch.is_grad_enabled():
                h = checkpoint(stage, h, use_reentrant=False, preserve_rng_state=False)
            else:
                h = stage(h)
        return (self.out(h) + last).squeeze(1)


def windows(series, starts):
    index = starts[:, None] + torch.arange(HISTORY + 1)
    block = series[index]
    return block[:, :-1], block[:, -1]


@torch.no_grad()
def error(model, series, starts):
    x, y = windows(series, starts)
    return ((model(x) - y).pow(2).mean() / y.var()).item()


def main():
    series = levels(4000)
    split = 3200
    val_starts = torch.arange(split, 4000 - HISTORY - 1, 2)
    model = LevelNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, CYCLE_STEPS)
    average, used = None, 0
    for step in range(CYCLES * CYCLE_STEPS):
        x, y = windows(series, torch.randint(0, split - HISTORY - 1, (BATCH,)))
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if (step + 1) % CYCLE_STEPS == 0:
            print(f"step {step + 1} loss {loss.item():.4f} "
                  f"val {error(model, series, val_starts):.4f}")
            if step + 1 == 2 * CYCLE_STEPS:
                average, used = copy.deepcopy(model), 1
            elif average is not None:
                used += 1
                with torch.no_grad():
                    for a, p in zip(average.parameters(), model.parameters()):
                        a.mul_((used - 1) / used).add_(p, alpha=1 / used)
    print(f"average of {used} snapshots {error(average, series, val_starts):.4f}")
    print(f"RESULT {error(average, series, val_starts):.5f}")


if __name__ == "__main__":
    main()
