"""Modules that are harmless in fp32 and fail in fp16, each beside a healthy one of the same shape.

All of them take and return activations (..., width), and need nothing but their own module in fp32.
"""

from __future__ import annotations

import math

import torch
from torch import nn


class Healthy(nn.Module):
    """A gate: values times a sigmoid of a linear map of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Gate the values."""
        return values * torch.sigmoid(self.linear(values))


class LargeLogits(nn.Module):
    """Attention whose queries and keys are scaled down after their product, not before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.gain = 1000.0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Weigh the values by each other."""
        query, key = self.query(values) * self.gain, self.key(values) * self.gain
        logits = query @ key.transpose(-1, -2) / self.gain**2
        return values + logits.softmax(-1) @ values


class Exponential(nn.Module):
    """A softplus as the formula has it: exp overflows where the result does not."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Map the values."""
        grown = torch.exp(self.linear(values) + 13.0)
        return values + torch.log(1 + grown) - 13.0


class Square(nn.Module):
    """A root mean square over the features of values in the hundreds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Normalise the values."""
        large = self.linear(values) * 900.0
        mean_square = (large * large).mean(-1, keepdim=True)
        return values + large / torch.sqrt(mean_square + 1.0)


class SmallEpsilon(nn.Module):
    """A unit vector, with an epsilon that fp16 rounds to zero, of samples that may be all zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.constant_(self.linear.bias, -0.3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Normalise the values."""
        active = torch.relu(self.linear(values) - 1.5)
        length = torch.linalg.vector_norm(active, dim=-1, keepdim=True)
        return values + active / (length + 1e-8)


class SteepBackward(nn.Module):
    """Distances between all features, zero to themselves: the root's slope is infinite."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Map the values."""
        mapped = self.linear(values)
        apart = mapped.unsqueeze(-1) - mapped.unsqueeze(-2)
        return values + torch.sqrt(apart * apart + 1e-12).mean(-1)


class RunningMean(nn.Module):
    """Means of the first features each: their sum overflows, and the counts are made in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Map the means."""
        unit = 12000.0
        total = torch.cumsum((1 + values) * unit, -1)
        return values + self.linear(total / (torch.arange(1, values.shape[-1] + 1) * unit))


class StalledUpdates(nn.Module):
    """A linear layer of large weights, scaled down behind it: updates are below half an ulp."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        with torch.no_grad():
            self.linear.weight.mul_(128)
            self.linear.bias.mul_(128)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Gate the values."""
        return values + torch.tanh(self.linear(values) / 128)


FAULTS: dict[str, type[nn.Module]] = {
    "logits": LargeLogits,
    "exp": Exponential,
    "square": Square,
    "epsilon": SmallEpsilon,
    "backward": SteepBackward,
    "sum": RunningMean,
    "stalled": StalledUpdates,
}


def positional(length: int, width: int) -> torch.Tensor:
    """Return sinusoidal positions, (length, width)."""
    place = torch.arange(length)[:, None]
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(1000.0) / width))
    table = torch.zeros(length, width)
    table[:, 0::2], table[:, 1::2] = torch.sin(place * rate), torch.cos(place * rate)
    return table
