"""Trains an ensemble of snapshots that are taken at the ends of cyclic learning rates."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(5)

CYCLES, EPOCHS = 4, 3


def images(n, seed):
    """Small images with one of five shapes of brightness."""
    gen = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 5, (n,), generator=gen)
    y, x = torch.meshgrid(torch.linspace(-1, 1, 12), torch.linspace(-1, 1, 12), indexing="ij")
    shapes = torch.stack([x, y, x * y, x ** 2 - y ** 2, (x ** 2 + y ** 2) - 0.7])
    strength = 0.5 + torch.rand(n, 1, 1, generator=gen)
    noise = 1.8 * torch.randn(n, 12, 12, generator=gen)
    return (shapes[label] * strength + noise).unsqueeze(1), label


model = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(24 * 9, 5))
train_x, train_y = images(2000, 1)
val_x, val_y = images(800, 2)
per_epoch = len(train_x) // 100
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, EPOCHS * per_epoch)
snapshots = []


@torch.no_grad()
def ensemble_loss(members, x, y):
    share = torch.stack([m(x).softmax(dim=1) for m in members]).mean(dim=0)
    return F.nll_loss(share.clamp_min(1e-12).log(), y).item()


for cycle in range(CYCLES):
    for epoch in range(EPOCHS):
        model.train()
        for chunk in torch.randperm(len(train_x)).split(100):
            loss = F.cross_entropy(model(train_x[chunk]), train_y[chunk])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    snapshots.append(copy.deepcopy(model).eval())
    single = ensemble_loss(snapshots[-1:], val_x, val_y)
    joint = ensemble_loss(snapshots, val_x, val_y)
    print(f"cycle {cycle} loss {loss.item():.4f} single {single:.4f} ensemble {joint:.4f}")
print("RESULT", round(ensemble_loss(snapshots, val_x, val_y), 4))
