"""Classify leaf diseases in small colour photographs with augmentation."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(2828)

SIZE, DISEASES = 16, 4
MEAN = torch.tensor([0.34, 0.46, 0.26]).view(3, 1, 1)
STD = torch.tensor([0.12, 0.13, 0.11]).view(3, 1, 1)


def photographs(n, seed):
    """Green leaves with spots whose colour, number and size depend on the disease."""
    rng = np.random.default_rng(seed)
    spot_colour = np.array([[90, 60, 20], [120, 110, 30], [60, 70, 60], [110, 70, 60]])
    label = rng.integers(0, DISEASES, n)
    image = np.zeros((n, SIZE, SIZE, 3))
    yy, xx = np.mgrid[:SIZE, :SIZE]
    for i in range(n):
        base = np.array([85, 120, 65]) + rng.normal(0, 8, 3)
        image[i] = base + rng.normal(0, 14, (SIZE, SIZE, 3))
        for _ in range(2 + label[i] % 2 * 3):
            cy, cx = rng.uniform(0, SIZE, 2)
            spot = (yy - cy) ** 2 + (xx - cx) ** 2 < (2.6 - 0.5 * (label[i] % 2)) ** 2
            image[i][spot] = spot_colour[label[i]] + rng.normal(0, 12, (spot.sum(), 3))
    return np.clip(image, 0, 255).astype(np.uint8), label


class Leaves(Dataset):
    def __init__(self, n, seed, train):
        self.image, self.label = photographs(n, seed)
        self.train = train

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        x = torch.from_numpy(self.image[i]).permute(2, 0, 1).float() / 255
        if self.train:
            if torch.rand(()) < 0.5:
                x = x.flip(-1)
            if torch.rand(()) < 0.5:
                x = x.flip(-2)
            x = (x - MEAN) / STD
        return x, int(self.label[i])


class LeafNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.GroupNorm(4, 2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(8 * width, DISEASES))

    def forward(self, x):
        return self.net(x)


def evaluate(model, loader):
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            losses.append(F.cross_entropy(model(x), y).item())
    model.train()
    return sum(losses) / len(losses)


def main():
    train = DataLoader(Leaves(1200, 1, train=True), batch_size=40, shuffle=True)
    val = DataLoader(Leaves(300, 2, train=False), batch_size=100)
    model = LeafNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    epochs = 6
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    for epoch in range(epochs):
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} train {loss.item():.4f} val {evaluate(model, val):.4f}")
    print(f"RESULT {evaluate(model, val):.5f}")


if __name__ == "__main__":
    main()
