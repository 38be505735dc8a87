"""Classify photographed machine parts that are stored in one folder per part number."""
import torch
torch.set_num_threads(1)
torch.manual_seed(270)
import os
import tempfile
import numpy as np
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIZE, PARTS = 16, ["bolt", "clip", "gear", "nut", "ring", "spring"]


def write_folders(root, per_part, seed):
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:SIZE, :SIZE] - SIZE / 2
    for k, part in enumerate(PARTS):
        os.makedirs(os.path.join(root, part))
        images = []
        for _ in range(per_part):
            dx, dy = rng.normal(0, 1.5, 2)
            r = np.hypot(xx - dx, yy - dy)
            a = np.arctan2(yy - dy, xx - dx) + rng.uniform(0, 6)
            shape = np.exp(-((r - 3 - 0.4 * k) / 1.5) ** 2) * (1 + 0.8 * np.cos(k * a))
            images.append(shape + rng.normal(0, 0.35, (SIZE, SIZE)))
        np.save(os.path.join(root, part, "shots.npy"), np.stack(images).astype(np.float32))


class PartFolder(Dataset):
    def __init__(self, root):
        self.images, self.labels = [], []
        for label, part in enumerate(sorted(os.listdir(root))):
            shots = np.load(os.path.join(root, part, "shots.npy"))
            self.images.extend(torch.from_numpy(s)[None] for s in shots)
            self.labels.extend([label] * len(shots))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = self.images[i]
        return (image - 0.2) / 0.5, self.labels[i]


class PartNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32 * 16, 48), nn.ReLU(), nn.Linear(48, len(PARTS)))

    def forward(self, x):
        return self.net(x)


def evaluate(model, loader):
    with torch.no_grad():
        losses = [F.cross_entropy(model(x), y, reduction="sum") for x, y in loader]
    return (sum(losses) / len(loader.dataset)).item()


with tempfile.TemporaryDirectory() as folder:
    write_folders(os.path.join(folder, "train"), 320, 1)
    write_folders(os.path.join(folder, "val"), 100, 2)
    train_set = PartFolder(os.path.join(folder, "train"))
    val_set = PartFolder(os.path.join(folder, "val"))

train_loader = DataLoader(train_set, batch_size=32)
val_loader = DataLoader(val_set, batch_size=200)
model = PartNet()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(6):
    model.train()
    for x, y in train_loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    print(f"epoch {epoch} last batch {loss.item():.4f} val {evaluate(model, val_loader):.4f}")
print("RESULT", evaluate(model, val_loader))
