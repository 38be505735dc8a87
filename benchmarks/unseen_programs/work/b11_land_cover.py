"""Land cover classification of satellite patches with four spectral bands."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(12)

COVERS = 5
SIZE = 12
BAND_MEAN = torch.tensor([1350.0, 1120.0, 1040.0, 2300.0]).view(4, 1, 1)
BAND_STD = torch.tensor([240.0, 260.0, 330.0, 700.0]).view(4, 1, 1)


def acquire(n, gen):
    """Reflectances as the sensor delivers them (times 10 000)."""
    shift = torch.randn(COVERS, 4, 1, 1, generator=torch.Generator().manual_seed(99))
    rough = torch.tensor([0.2, 0.5, 0.9, 1.3, 0.7]).view(-1, 1, 1, 1)
    cover = torch.randint(0, COVERS, (n,), generator=gen)
    coarse = torch.randn(n, 4, 4, 4, generator=gen)
    texture = F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic")
    haze = 0.5 * torch.randn(n, 1, 1, 1, generator=gen)
    z = 0.7 * shift[cover] + rough[cover] * texture + haze
    z = z + 0.4 * torch.randn(n, 4, SIZE, SIZE, generator=gen)
    return z * BAND_STD + BAND_MEAN, cover


class Patches(Dataset):
    def __init__(self, images, covers, train):
        self.images, self.covers, self.train = images, covers, train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        x = self.images[i]
        if self.train:
            if torch.rand(1).item() < 0.5:
                x = x.flip(-1)
            if torch.rand(1).item() < 0.5:
                x = x.flip(-2)
            x = (x - BAND_MEAN) / BAND_STD
        return x, self.covers[i]


def conv(c_in, c_out, stride):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
    )


def build():
    return nn.Sequential(
        conv(4, 16, 1), conv(16, 24, 2), conv(24, 32, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, COVERS),
    )


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    loss = correct = count = 0
    for x, y in loader:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(1) == y).sum().item()
        count += len(y)
    model.train()
    return loss / count, correct / count


def main(epochs=5):
    gen = torch.Generator().manual_seed(3)
    images, covers = acquire(1500, gen)
    train = DataLoader(Patches(images[:1200], covers[:1200], True), 48, shuffle=True)
    val = DataLoader(Patches(images[1200:], covers[1200:], False), 150)
    model = build()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=epochs * len(train))
    for epoch in range(epochs):
        total = 0.0
        for x, y in train:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            total += loss.item()
        v, acc = evaluate(model, val)
        print(f"epoch {epoch} train {total / len(train):.4f} val {v:.4f} accuracy {acc:.3f}")
    print(f"RESULT {evaluate(model, val)[0]:.5f}")


if __name__ == "__main__":
    main()
