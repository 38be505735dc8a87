"""Code shared by the small programs: a model, data, and plain training loops."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def batches(count: int, seed: int = 0):
    """Yield batches of 8 samples that a linear model can learn."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(6, 3, generator=generator)
    for _ in range(count):
        images = torch.randn(8, 6, generator=generator)
        yield images, (images @ weights).argmax(1)


def classifier() -> nn.Sequential:
    """Two layers with a norm between them."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


class Around(nn.Module):
    """A linear layer, a function, and a head.

    Args:
        between: The function of the features, shape (batch, 16).
    """

    def __init__(self, between) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift = nn.Linear(6, 16)
        self.inner = Inner(between)
        self.head = nn.Linear(16, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.lift(images)))


class Inner(nn.Module):
    """A function as a module."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.function(features)


def half_autocast() -> torch.autocast:
    """Autocast in fp16."""
    return torch.autocast("cpu", dtype=torch.float16)


def loss_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The model's loss under fp16 autocast."""
    with half_autocast():
        return functional.cross_entropy(model(images), labels)


def plain_steps(model: nn.Module, loss_function, count: int = 4, rate: float = 0.05) -> None:
    """Train without a scaler."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for images, labels in batches(count):
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()


def half_steps(model: nn.Module, loss_function=functional.cross_entropy, count: int = 4) -> None:
    """Train under fp16 autocast with a scaler at a suitable scale."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for images, labels in batches(count):
        optimizer.zero_grad()
        with half_autocast():
            loss = loss_function(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
