"""Segment cells in fluorescence images with a small encoder-decoder network."""
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(1515)

SIZE = 32


def write_images(folder, n, seed):
    """Image and mask as 8-bit arrays, the way the microscope export stores them."""
    rng = np.random.default_rng(seed)
    yy, xx = np.mgrid[:SIZE, :SIZE]
    for i in range(n):
        glow = np.zeros((SIZE, SIZE))
        mask = np.zeros((SIZE, SIZE), dtype=np.uint8)
        for _ in range(rng.integers(2, 5)):
            cy, cx, r = rng.uniform(4, 28), rng.uniform(4, 28), rng.uniform(2.5, 5)
            d = np.sqrt((yy - cy) ** 2 + (xx - cx) ** 2)
            glow += 110 * np.exp(-(d / r) ** 4)
            mask[d < r] = 255
        image = np.clip(40 + glow + rng.normal(0, 28, glow.shape), 0, 255).astype(np.uint8)
        np.savez(os.path.join(folder, f"{seed}_{i:04d}.npz"), image=image, mask=mask)


class Cells(Dataset):
    def __init__(self, folder, seed):
        names = sorted(f for f in os.listdir(folder) if f.startswith(f"{seed}_"))
        self.items = [np.load(os.path.join(folder, f)) for f in names]
        self.items = [(d["image"], d["mask"]) for d in self.items]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        image, mask = self.items[i]
        image = torch.from_numpy(image).float().unsqueeze(0) / 255.0
        mask = torch.from_numpy(mask).float().unsqueeze(0)
        return (image - 0.3) / 0.2, mask


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU())


class SmallUNet(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.down = conv(1, width)
        self.mid = nn.Sequential(conv(width, 2 * width), conv(2 * width, width))
        self.up = conv(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down(x)
        b = self.mid(F.max_pool2d(a, 2))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(self.up(torch.cat([a, b], 1)))


@torch.no_grad()
def one_minus_iou(model, loader):
    model.eval()
    inter = union = 0
    for image, mask in loader:
        guess, truth = model(image) > 0, mask > 0
        inter += (guess & truth).sum().item()
        union += (guess | truth).sum().item()
    model.train()
    return 1 - inter / union


def main():
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, 240, seed=1)
        write_images(folder, 60, seed=2)
        train = DataLoader(Cells(folder, 1), batch_size=12, shuffle=True)
        val = DataLoader(Cells(folder, 2), batch_size=60)
    model = SmallUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(6):
        for image, mask in train:
            loss = criterion(model(image), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} 1-iou {one_minus_iou(model, val):.4f}")
    print(f"RESULT {one_minus_iou(model, val):.5f}")


if __name__ == "__main__":
    main()
