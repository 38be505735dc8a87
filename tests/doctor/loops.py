"""What the small programs share: a model, data, and a plain loop to be got wrong."""

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
    """Two layers, with a norm between."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


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
