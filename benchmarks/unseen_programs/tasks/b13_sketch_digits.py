"""Recognises hand-drawn strokes from few drawings, with random distortion in training."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
torch.manual_seed(71)

SIDE, KINDS = 16, 5


class Sketches(Dataset):
    """Drawings of a few kinds; a transform is applied when one is read."""

    def __init__(self, n, transform=None):
        g = torch.Generator().manual_seed(8)
        shapes = torch.rand(KINDS, 1, 5, 5, generator=g)
        shapes = F.interpolate(shapes, size=SIDE, mode="bilinear", align_corners=False)
        self.kind = torch.randint(0, KINDS, (n,), generator=g)
        ink = (shapes - shapes.mean()) / shapes.std()
        self.image = ink[self.kind] + 0.9 * torch.randn(n, 1, SIDE, SIDE, generator=g)
        self.transform = transform

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        image = self.image[i]
        if self.transform is not None:
            image = self.transform(image)
        return image, self.kind[i]


class Distort:
    """Shifts, erases a patch and adds paper noise."""

    def __init__(self, shift=3, patch=9, noise=1.0):
        self.shift, self.patch, self.noise = shift, patch, noise

    def __call__(self, image):
        dy, dx = torch.randint(-self.shift, self.shift + 1, (2,)).tolist()
        image = torch.roll(image, (dy, dx), dims=(1, 2)).clone()
        top, left = torch.randint(0, SIDE - self.patch + 1, (2,)).tolist()
        image[:, top:top + self.patch, left:left + self.patch] = 0.0
        return image + self.noise * torch.randn_like(image)


def build():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 16, KINDS),
    )


def get_parts():
    sketches = Sketches(700)
    split = torch.Generator().manual_seed(0)
    train, val = random_split(sketches, [500, 200], generator=split)
    val.dataset.transform = None
    train.dataset.transform = Distort()
    return train, val


def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        total = sum(F.cross_entropy(net(x), y, reduction="sum").item() for x, y in loader)
    net.train()
    return total / len(loader.dataset)


def main():
    train, val = get_parts()
    train_loader = DataLoader(train, batch_size=50, shuffle=True)
    val_loader = DataLoader(val, batch_size=100)
    net = build()
    opt = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=8, gamma=0.3)
    for epoch in range(16):
        for x, y in train_loader:
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        if epoch % 2:
            print(f"epoch {epoch} train {loss.item():.3f} val {evaluate(net, val_loader):.3f}")
    print("RESULT", evaluate(net, val_loader))


if __name__ == "__main__":
    main()
