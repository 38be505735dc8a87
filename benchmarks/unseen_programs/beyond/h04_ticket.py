"""Finds a sparse subnetwork by pruning and rewinding, and trains it from its first weights."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)

ROUNDS, KEEP = 3, 0.6


def samples(n, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 30, generator=gen)
    a = (x[:, 0] + x[:, 1] > 0).long()
    b = (x[:, 2] - x[:, 3] > 0).long()
    return x, a + 2 * b


def prunable(model):
    return {name: p for name, p in model.named_parameters() if p.dim() == 2}


def apply_masks(model, masks):
    with torch.no_grad():
        for name, p in prunable(model).items():
            p.mul_(masks[name])


def train(model, masks, x, y, epochs=3):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for chunk in torch.randperm(len(x)).split(100):
            loss = F.cross_entropy(model(x[chunk]), y[chunk])
            optimizer.zero_grad()
            loss.backward()
            for name, p in prunable(model).items():
                p.grad.mul_(masks[name])
            optimizer.step()
            apply_masks(model, masks)
    return loss.item()


@torch.no_grad()
def error(model, x, y):
    return (model(x).argmax(1) != y).float().mean().item()


train_x, train_y = samples(3000, 1)
val_x, val_y = samples(1000, 2)
model = nn.Sequential(nn.Linear(30, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(),
                      nn.Linear(100, 4))
start = copy.deepcopy(model.state_dict())
masks = {name: torch.ones_like(p) for name, p in prunable(model).items()}
for turn in range(ROUNDS + 1):
    loss = train(model, masks, train_x, train_y)
    left = sum(m.sum().item() for m in masks.values()) / sum(m.numel() for m in masks.values())
    print(f"round {turn} weights left {left:.3f} loss {loss:.4f} "
          f"error {error(model, val_x, val_y):.4f}")
    if turn == ROUNDS:
        break
    for name, p in prunable(model).items():
        alive = p.detach().abs()[masks[name] > 0]
        limit = alive.quantile(1 - KEEP)
        masks[name] = masks[name] * (p.detach().abs() > limit).float()
    model.load_state_dict(start)
    apply_masks(model, masks)
print("RESULT", round(error(model, val_x, val_y), 4))
