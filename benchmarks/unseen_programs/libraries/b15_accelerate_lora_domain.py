"""Adapt a trained digit-like classifier to a new sensor with low-rank adapters and accelerate."""
import math

import torch

torch.set_num_threads(1)
torch.manual_seed(19)

from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, DIM = 8, 64


def readings(n, seed, shifted):
    world = torch.Generator().manual_seed(3)
    proto = torch.randn(CLASSES, DIM, generator=world)
    mix = torch.linalg.qr(torch.randn(DIM, DIM, generator=world))[0]
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    x = proto[y] + 1.3 * torch.randn(n, DIM, generator=g)
    if shifted:
        x[:, :40] = (x @ mix)[:, :40]
    return TensorDataset(x, y)


class Classifier(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(DIM, width), nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        return self.head(torch.relu(self.fc2(h)))


class LoRALinear(nn.Module):
    def __init__(self, base, rank=8, alpha=16):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.down = nn.Parameter(torch.empty(rank, base.in_features))
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.down.T @ self.up.T)


def add_adapters(model):
    for p in model.parameters():
        p.requires_grad_(False)
    for name in ("fc1", "fc2", "head"):
        setattr(model, name, LoRALinear(getattr(model, name)))
    return model


def fit(accelerator, model, optimizer, loader, epochs):
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item()
        accelerator.print(f"  epoch {epoch} loss {total / len(loader):.4f}")


@torch.no_grad()
def mean_loss(model, data):
    x, y = data.tensors
    return nn.functional.cross_entropy(model(x), y).item()


def main():
    accelerator = Accelerator(cpu=True)
    source, target = readings(2000, 1, False), readings(2000, 2, True)
    valid = readings(800, 3, True)

    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(source, batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    print("source sensor")
    fit(accelerator, model, optimizer, loader, 2)
    print(f"target loss before adaptation {mean_loss(model, valid):.4f}")

    print("target sensor")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(target, batch_size=64, shuffle=True)
    add_adapters(accelerator.unwrap_model(model))
    optimizer, loader = accelerator.prepare(optimizer, loader)
    fit(accelerator, model, optimizer, loader, 4)
    print(f"RESULT {mean_loss(model, valid):.4f}")


if __name__ == "__main__":
    main()
