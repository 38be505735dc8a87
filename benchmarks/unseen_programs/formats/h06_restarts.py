import copy
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(70)
torch.set_num_threads(1)


def problem(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    logit = 2 * torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2] - x[:, 3]
    y = (torch.rand(n, generator=g) < torch.sigmoid(3 * logit)).float()
    return TensorDataset(x, y)


def member():
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))


def cycle(model, loader, epochs, peak):
    """One cosine cycle from the peak rate to nothing, with a new optimizer."""
    opt = torch.optim.SGD(model.parameters(), lr=peak, momentum=0.9, weight_decay=1e-3)
    steps = epochs * len(loader)
    done = 0
    first = last = None
    model.train()
    for _ in range(epochs):
        for x, y in loader:
            for group in opt.param_groups:
                group["lr"] = 0.5 * peak * (1 + math.cos(math.pi * done / steps))
            loss = nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            done += 1
            first = loss.item() if first is None else first
            last = loss.item()
    print(f"cycle: loss {first:.3f} -> {last:.3f}, final lr {opt.param_groups[0]['lr']:.5f}")


@torch.no_grad()
def ensemble_loss(members, data):
    x, y = data.tensors
    p = torch.stack([torch.sigmoid(m.eval()(x)[:, 0]) for m in members]).mean(0)
    return nn.functional.binary_cross_entropy(p, y).item()


def main():
    train = DataLoader(problem(4000, 1), batch_size=64, shuffle=True, drop_last=True)
    val = problem(2000, 2)
    model = member()
    members = []
    for k in range(5):
        cycle(model, train, epochs=5, peak=0.15)
        members.append(copy.deepcopy(model))
        print(f"single {ensemble_loss(members[-1:], val):.4f}  all {ensemble_loss(members, val):.4f}")
    print("RESULT", ensemble_loss(members[1:], val))


main()
