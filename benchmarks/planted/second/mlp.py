"""Multilayer perceptrons with planted faults."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class HandSoftplus(nn.Module):
    """log(1 + exp(x)), as in the formula."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.log(1 + torch.exp(x))


class SoftplusNet(nn.Module):
    """Inputs of the softplus above 12."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.act = HandSoftplus()
        self.fc2 = nn.Linear(32, 4)
        with torch.no_grad():
            self.fc1.bias.copy_(torch.linspace(0.0, 16.0, 32))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)) * 0.2)


class Standardize(nn.Module):
    """Standardizes a batch with the variance E[x^2] - E[x]^2."""

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(0)
        variance = (x * x).mean(0) - mean**2
        return (x - mean) / torch.sqrt(variance.abs() + 1e-3)


class VarianceNet(nn.Module):
    """Raw features of mean 150: their squares fit into fp16, but cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.standardize = Standardize()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.standardize(x))


class Gain(nn.Module):
    """A gain per feature in units of 1/512."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = nn.Parameter(torch.full((width,), 512.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.steps / 512)


class StalledNet(nn.Module):
    """Updates of the gains are far below half an ulp of 512."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.gain = Gain(32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.gain(self.fc1(x))))


class PolynomialNet(nn.Module):
    """Features of 10 to 30: their fourth powers, in the net's own forward, pass 65,504."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(16, 16)
        self.out = nn.Linear(32, 4)
        with torch.no_grad():
            self.scale.weight.mul_(30)

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(x)
        return self.out(torch.cat([x, x * x * x * x / 1e5], dim=-1) * 0.1)


class GatedUnit(nn.Module):
    """A logistic gate written as e^x / (1 + e^x)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        nn.init.constant_(self.gate.bias, 12.0)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x).exp()
        return F.relu(self.value(x)) * gate / (1 + gate)


class Sparse(nn.Module):
    """Activations above a threshold, divided by their mean, which is often zero."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x - 0.6)
        return x / (x.mean(-1, keepdim=True) + 1e-8)


class TwoFaultsNet(nn.Module):
    """An exponential of 12, and a division by a mean that can be zero."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = GatedUnit(16, 24)
        self.fc = nn.Linear(24, 24)
        self.sparse = Sparse()
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.unit(x)
        return self.head(h + 0.1 * self.sparse(self.fc(h)))
