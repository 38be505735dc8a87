"""Convolutional networks with planted faults."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Energy(nn.Module):
    """Log of the mean energy of each channel, as in filter banks."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log1p((x * x).mean(dim=(2, 3)))


class EnergyNet(nn.Module):
    """Filters of a large gain; their squares pass 65,504."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Conv2d(1, 8, 3, padding=1)
        self.energy = Energy()
        self.head = nn.Linear(8 * 1, 4)
        with torch.no_grad():
            self.filters.weight.mul_(800)

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.linspace(0.5, 1.5, 8, device=x.device).to(x.dtype)
        return self.head(self.energy(self.filters(x)))


class HandGroupNorm(nn.Module):
    """Group normalization whose variance is E[x^2] - E[x]^2."""

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        g = x.view(n, self.groups, -1)
        mean = g.mean(-1, keepdim=True)
        var = (g * g).mean(-1, keepdim=True) - mean * mean
        g = (g - mean) / (var.clamp(min=0) + 1e-3).sqrt()
        return g.view(n, c, h, w) * self.weight[:, None, None] + self.bias[:, None, None]


class GroupNormNet(nn.Module):
    """The norm's input has a mean far above its spread, so that the variance cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = HandGroupNorm(2, 8)
        self.conv = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(8 * 16, 4)
        nn.init.constant_(self.stem.bias, 200.0)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.stem(x)))
        x = F.relu(self.conv(x))
        return self.head(x.flatten(1))


class SpatialPool(nn.Module):
    """Attention over positions with a softmax written by hand, without subtracting the maximum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.score = nn.Conv2d(channels, 1, 1)
        nn.init.constant_(self.score.bias, 14.0)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.exp(self.score(x))
        weight = weight / weight.sum(dim=(2, 3), keepdim=True)
        return (x * weight).flatten(2).sum(-1)


class SpatialPoolNet(nn.Module):
    """Scores of about 14: exp passes 65,504 where it runs in fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 5, padding=2), nn.ReLU()
        )
        self.pool = SpatialPool(12)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(x)))


class Contrast(nn.Module):
    """Divides each channel by its mean magnitude."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (x.abs().mean(dim=(2, 3), keepdim=True) + 1e-8)


class ContrastNet(nn.Module):
    """One channel is dead behind its ReLU: 0 / (0 + 1e-8), where 1e-8 is zero in fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.contrast = Contrast()
        self.conv2 = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.head = nn.Linear(128, 4)
        with torch.no_grad():
            self.conv1.bias[3] = -50.0

    def forward(self, x: Tensor) -> Tensor:
        x = self.contrast(F.relu(self.conv1(x)))
        return self.head(F.relu(self.conv2(x)).flatten(1))


class Growing(nn.Module):
    """A residual block without norm whose branch is several times its input."""

    def __init__(self, width: int, gain: float) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.gain = gain

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * F.relu(self.conv(x))


class Trunk(nn.Module):
    """Blocks whose stream grows, and the norm that brings it back."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Growing(8, 24.0) for _ in range(5)])
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class GrowingNet(nn.Module):
    """The residual stream grows from 1 past 65,504."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.trunk = Trunk()
        self.head = nn.Linear(512, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(self.stem(x)).flatten(1))
