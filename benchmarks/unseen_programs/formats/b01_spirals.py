import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(11)
torch.set_num_threads(1)

CLASSES = 4
EPOCHS = 20


def make_spirals(per_class, noise, seed):
    gen = torch.Generator().manual_seed(seed)
    xs, ys = [], []
    for c in range(CLASSES):
        r = torch.rand(per_class, generator=gen) * 0.9 + 0.1
        angle = r * 4.0 + 2 * math.pi * c / CLASSES
        angle = angle + noise * torch.randn(per_class, generator=gen)
        xs.append(torch.stack([r * angle.cos(), r * angle.sin()], dim=1))
        ys.append(torch.full((per_class,), c))
    return TensorDataset(torch.cat(xs), torch.cat(ys))


class Lift(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("freq", torch.randn(2, width) * 2.0)

    def forward(self, x):
        z = x @ self.freq
        return torch.cat([x, z.sin(), z.cos()], dim=1)


class SpiralNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.lift = Lift(16)
        self.stem = nn.Linear(34, width)
        self.mid = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out = nn.Linear(width, CLASSES)

    def forward(self, x):
        h = torch.relu(self.stem(self.lift(x)))
        for layer in self.mid:
            h = h + torch.relu(layer(h))
        return self.out(h)


def train_epoch(model, loader, opt):
    model.train()
    seen, running = 0, 0.0
    with torch.autocast("cpu", torch.bfloat16):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            running += loss.item() * len(x)
            seen += len(x)
    return running / seen


@torch.no_grad()
def validate(model, loader):
    model.eval()
    wrong = total = 0
    with torch.autocast("cpu", torch.bfloat16):
        for x, y in loader:
            wrong += (model(x).argmax(1) != y).sum().item()
            total += len(y)
    return wrong / total


def main():
    train = DataLoader(make_spirals(800, 0.2, 1), batch_size=200, shuffle=True)
    val = DataLoader(make_spirals(300, 0.2, 2), batch_size=300)
    model = SpiralNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS)
    for epoch in range(EPOCHS):
        loss = train_epoch(model, train, opt)
        sched.step()
        error = validate(model, val)
        print(f"epoch {epoch:2d} loss {loss:.4f} error {error:.4f}")
    print("RESULT", error)


main()
