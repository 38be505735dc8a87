"""Trains a segmentation network on synthetic pictures of discs with random mirroring."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(2)
random.seed(2)

SIDE = 24


class Mirror:
    """Mirrors a picture from left to right with probability p."""

    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, *tensors):
        if random.random() < self.p:
            tensors = tuple(t.flip(-1) for t in tensors)
        return tensors if len(tensors) > 1 else tensors[0]


class Discs(Dataset):
    def __init__(self, n, seed, augment=None):
        gen = torch.Generator().manual_seed(seed)
        grid = torch.arange(SIDE).float()
        self.images = 0.4 * torch.randn(n, 3, SIDE, SIDE, generator=gen)
        self.masks = torch.zeros(n, SIDE, SIDE, dtype=torch.long)
        for i in range(n):
            for label in (1, 2):
                cy, cx = (torch.rand(2, generator=gen) * SIDE).tolist()
                radius = 3 + 4 * torch.rand(1, generator=gen).item()
                inside = (grid[:, None] - cy) ** 2 + (grid[None] - cx) ** 2 < radius ** 2
                self.masks[i][inside] = label
            for label in range(3):
                self.images[i, label] += (self.masks[i] == label).float()
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image, mask = self.images[i], self.masks[i]
        if self.augment is not None:
            image = self.augment(image)
            mask = self.augment(mask)
        return image, mask


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 3, 1))

    def forward(self, x):
        return self.body(x)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    loss, pixels = 0.0, 0
    for image, mask in loader:
        loss += F.cross_entropy(model(image), mask, reduction="sum").item()
        pixels += mask.numel()
    model.train()
    return loss / pixels


train = DataLoader(Discs(640, 1, Mirror()), batch_size=32, shuffle=True)
val = DataLoader(Discs(160, 2), batch_size=80)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(6):
    for image, mask in train:
        loss = F.cross_entropy(model(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f} val {validate(model, val):.4f}")
print("RESULT", round(validate(model, val), 4))
