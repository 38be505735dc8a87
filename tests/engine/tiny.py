"""Nets, gradients out of the ordinary and bitwise comparison, for the tests of the engine."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode


class DigitsNet(nn.Module):
    """A convolution, both kinds of norm layer and a linear layer; takes (n, 1, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.batch_norm = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(96, 24)
        self.layer_norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.batch_norm(self.conv(images)).relu().flatten(1)
        return self.head(self.layer_norm(self.hidden(features)).relu())


def digits_net(seed: int = 0) -> DigitsNet:
    """Return the same `DigitsNet` for the same seed."""
    torch.manual_seed(seed)
    return DigitsNet()


def fp64_digits_net(seed: int = 0) -> DigitsNet:
    """A model in a format that no recipe leaves it in."""
    return digits_net(seed).double()


def sgd(model: nn.Module, lr: float = 0.05) -> SGD:
    return SGD(model.parameters(), lr=lr, momentum=0.9)


def mlp(seed: int = 0, *, norm: bool = False) -> nn.Sequential:
    """Return a small smooth net from 6 features to 3, without batch statistics unless `norm`."""
    torch.manual_seed(seed)
    middle = [nn.BatchNorm1d(8)] if norm else []
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 3))


class GradientTimes(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number on its way back."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.factor, None


def with_infinite_gradient(value: torch.Tensor) -> torch.Tensor:
    """Return `value`; whatever made it gets a gradient that is not finite."""
    out: torch.Tensor = GradientTimes.apply(value, float("inf"))
    return out


class Calls(TorchDispatchMode):
    """Records the names of the operators that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


def differences(first: Any, second: Any, path: str = "") -> list[str]:
    """Return where two nested containers differ in any bit, dtype or key."""
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        same = (
            isinstance(first, torch.Tensor)
            and isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and torch.equal(first.to_dense(), second.to_dense())
        )
        return [] if same else [path]
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return [f"{path}: keys {first.keys() ^ second.keys()}"]
        return [d for key in first for d in differences(first[key], second[key], f"{path}/{key}")]
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        if len(first) != len(second):
            return [f"{path}: {len(first)} and {len(second)} entries"]
        pairs = enumerate(zip(first, second, strict=True))
        return [d for place, (a, b) in pairs for d in differences(a, b, f"{path}/{place}")]
    return [] if first == second else [f"{path}: {first!r} and {second!r}"]


def through_a_file(state: Any) -> Any:
    """Return what a program that loads the checkpoint safely gets back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of the reference."""
    error = (value.double() - reference.double()).norm() / reference.double().norm()
    return float(error.detach())
