"""Trains a digit classifier on images perturbed by an attack on the model itself."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(229)

EPSILON = 0.3


def digits(n, seed, side=12, kinds=6):
    g = torch.Generator().manual_seed(seed)
    base = torch.randn(kinds, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    base = F.interpolate(base, size=side, mode="bicubic", align_corners=False)
    label = torch.randint(0, kinds, (n,), generator=g)
    return base[label] + 1.2 * torch.randn(n, 1, side, side, generator=g), label


class Net(nn.Module):
    def __init__(self, kinds=6):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.out = nn.Linear(24 * 9, kinds)

    def forward(self, x):
        return self.out(self.conv(x).flatten(1))


def attack(net, x, y, steps=2):
    """Ascends the loss on the pixels; leaves gradients on the parameters behind."""
    delta = torch.empty_like(x).uniform_(-EPSILON, EPSILON).requires_grad_(True)
    for _ in range(steps):
        F.cross_entropy(net(x + delta), y).backward()
        with torch.no_grad():
            delta.add_(0.6 * EPSILON * delta.grad.sign()).clamp_(-EPSILON, EPSILON)
        delta.grad = None
    return (x + delta).detach()


class RobustTrainer:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)

    def step(self, x, y):
        hard = attack(self.net, x, y)
        self.opt.zero_grad()
        loss = 0.5 * (F.cross_entropy(self.net(x), y) + F.cross_entropy(self.net(hard), y))
        loss.backward()
        self.opt.step()
        return loss.item()

    def evaluate(self, x, y):
        hard = attack(self.net, x, y, steps=4)
        self.net.zero_grad()
        with torch.no_grad():
            clean = F.cross_entropy(self.net(x), y).item()
            return clean, F.cross_entropy(self.net(hard), y).item()


x, y = digits(900, 1)
vx, vy = digits(300, 2)
trainer = RobustTrainer(Net(), lr=0.03)
for epoch in range(6):
    for pick in torch.randperm(len(x)).split(45):
        loss = trainer.step(x[pick], y[pick])
    clean, hard = trainer.evaluate(vx, vy)
    print(f"epoch {epoch} loss {loss:.4f} clean {clean:.4f} attacked {hard:.4f}")
print("RESULT", hard)
