"""Forecast the yield of solar plants a few hours ahead from weather and past yield."""
import torch
torch.set_num_threads(1)
torch.manual_seed(280)
import math
from collections import namedtuple
from torch import nn

OptimizerSettings = namedtuple("OptimizerSettings", "lr weight_decay momentum")
HISTORY, AHEAD = 24, 3


def plant(hours, seed):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours)
    sun = torch.sin(2 * math.pi * (t - 6) / 24).clamp(min=0)
    cloud = torch.zeros(hours)
    for h in range(1, hours):
        cloud[h] = 0.95 * cloud[h - 1] + 0.3 * torch.randn(1, generator=g).item()
    yield_ = sun * torch.sigmoid(1.5 - cloud) + 0.02 * torch.randn(hours, generator=g)
    return torch.stack([yield_, sun, cloud / 2])


def windows(series):
    starts = range(series.shape[1] - HISTORY - AHEAD)
    x = torch.stack([series[:, s:s + HISTORY] for s in starts])
    y = torch.stack([series[0, s + HISTORY:s + HISTORY + AHEAD] for s in starts])
    return x, y


class YieldNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.conv = nn.Conv1d(3, 12, 5, padding=2)
        self.dense = nn.Sequential(nn.Linear(12 * HISTORY, width), nn.ReLU(),
                                   nn.Linear(width, AHEAD))

    def forward(self, x):
        return self.dense(torch.relu(self.conv(x)).flatten(1))


def make_optimizer(model, settings):
    return torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum,
                           weight_decay=settings.weight_decay)


def train(model, data, val, settings, steps=400):
    opt = make_optimizer(model, settings)
    sched = torch.optim.lr_scheduler.MultiStepLR(opt, [250, 350], gamma=0.3)
    x, y = data
    for step in range(steps):
        rows = torch.randint(len(x), (64,))
        loss = (model(x[rows]) - y[rows]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.5f} val {validate(model, val):.5f}")


@torch.no_grad()
def validate(model, val):
    return (model(val[0]) - val[1]).square().mean().item()


train_data = windows(plant(2400, 1))
val_data = windows(plant(700, 2))
model = YieldNet()
train(model, train_data, val_data, OptimizerSettings(0.05, 0.9, 1e-4))
print("RESULT", validate(model, val_data))
