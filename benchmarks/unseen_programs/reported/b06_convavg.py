"""Small image classifier; the averaged weights are what we evaluate and ship."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class WeightAverage:
    def __init__(self, model, decay):
        self.decay = decay
        self.module = copy.deepcopy(model).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        live = dict(model.named_parameters())
        for name, avg in self.module.named_parameters():
            avg.lerp_(live[name], 1.0 - self.decay)


def conv(cin, cout, stride):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(conv(1, 12, 1), conv(12, 24, 2), conv(24, 32, 2))
        self.classifier = nn.Linear(32, classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


def textures(n, seed, classes=6):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    yy, xx = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    ang = y.float() * 3.14159 / classes
    phase = 6.28 * torch.rand(n, 1, 1, generator=g)
    wave = torch.sin(1.3 * (xx * ang.cos()[:, None, None] + yy * ang.sin()[:, None, None]) + phase)
    img = 1.5 + 0.8 * wave + 0.7 * torch.randn(n, 12, 12, generator=g)
    return img[:, None], y


@torch.no_grad()
def error_rate(model, loader):
    model.eval()
    wrong = sum((model(x).argmax(1) != y).sum().item() for x, y in loader)
    return wrong / len(loader.dataset)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = DataLoader(TensorDataset(*textures(1600, 1)), batch_size=40, shuffle=True)
    val = DataLoader(TensorDataset(*textures(400, 2)), batch_size=100)
    model = Net(6)
    average = WeightAverage(model, decay=0.95)
    opt = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, nesterov=True, weight_decay=5e-4)
    epochs = 5
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, epochs=epochs, steps_per_epoch=len(train))
    for epoch in range(epochs):
        model.train()
        for x, y in train:
            opt.zero_grad()
            F.cross_entropy(model(x), y, label_smoothing=0.05).backward()
            opt.step()
            sched.step()
            average.update(model)
        print(f"epoch {epoch + 1}/{epochs} err {error_rate(average.module, val):.4f}")
    print(f"RESULT {error_rate(average.module, val):.4f}")


if __name__ == "__main__":
    main()
