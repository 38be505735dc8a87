"""Data and a training that the programs of this folder share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

COUNT = 48


def samples(count: int = COUNT, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs that differ, and their classes, which a linear model can learn."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 6, generator=generator)
    weights = torch.randn(6, classes, generator=generator)
    return inputs, (inputs @ weights).argmax(1)


def data(count: int = COUNT) -> TensorDataset:
    """Return the samples as a data set."""
    return TensorDataset(*samples(count))


class Training:
    """A model with its optimizer.

    Args:
        dropout: The rate of its dropout; 0 for none.
        rate: The learning rate.
    """

    def __init__(self, dropout: float = 0.0, rate: float = 0.05) -> None:
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(6, 16), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
        self.model = nn.Sequential(*layers, nn.Linear(16, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take one step."""
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, batches) -> float:
        """Return the accuracy on batches."""
        self.model.eval()
        right = [(self.model(inputs).argmax(1) == targets) for inputs, targets in batches]
        self.model.train()
        return torch.cat(right).float().mean().item()
