"""Twenty small tasks to train, with which the first measure of damage was chosen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from planted.faults import FAULTS, Healthy
from planted.nets import Cnn, Gnn, Gru, Mlp, Vit
from sklearn import datasets
from torch import nn
from torch.nn import functional

from halfstep.advise.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 32


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        name: What it is called.
        model: Makes the network.
        inputs: All training samples.
        targets: Their classes, or numbers to regress on.
        optimizer: Makes the optimizer.
    """

    name: str
    model: Callable[[], nn.Module]
    inputs: torch.Tensor
    targets: torch.Tensor
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]

    def loss(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the mean loss of a batch."""
        found = model(batch[0]).float()
        if self.targets.is_floating_point():
            return functional.mse_loss(found.squeeze(-1), batch[1])
        return functional.cross_entropy(found.flatten(0, -2), batch[1].flatten())

    def batches(self, seed: int, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return batches drawn at random."""
        chance = torch.Generator().manual_seed(seed)
        picked = torch.randint(0, len(self.inputs), (steps, BATCH), generator=chance)
        return [(self.inputs[each], self.targets[each]) for each in picked]

    def subject(self, seed: int) -> Subject:
        """Return what advice is wanted on."""
        torch.manual_seed(seed)
        return Subject(self.name, self.model(), self.loss, self.batches(seed, 8), self.optimizer)


class Adapted(nn.Module):
    """A network of one of the planted families on samples of another shape."""

    def __init__(
        self,
        family: type[nn.Module],
        gate: type[nn.Module],
        shape: tuple[int, ...],
        into: tuple[int, ...],
        classes: int,
    ) -> None:
        super().__init__()
        self.into = into
        self.embed = nn.Linear(math.prod(shape), math.prod(into))
        self.net = family(gate)
        self.net.head = nn.Linear(self.net.head.in_features, classes)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.net(self.embed(values.flatten(1)).unflatten(1, self.into))


def tasks() -> list[Task]:
    """Return the twenty tasks."""
    digits = scaled(datasets.load_digits())
    wine = scaled(datasets.load_wine())
    cancer = scaled(datasets.load_breast_cancer())
    diabetes = scaled(datasets.load_diabetes())
    diabetes = (diabetes[0], (diabetes[1] - diabetes[1].mean()) / diabetes[1].std())
    sequences = _sequences()
    rows: list[tuple[str, type[nn.Module], str, Any, tuple[int, ...], str]] = [
        ("digits, MLP", Mlp, "", digits, (12,), "sgd"),
        ("digits, MLP, Adam", Mlp, "", digits, (12,), "adam"),
        ("wine, MLP", Mlp, "", wine, (12,), "sgd"),
        ("cancer, MLP, Adam", Mlp, "", cancer, (12,), "adam"),
        ("diabetes, MLP", Mlp, "", diabetes, (12,), "sgd"),
        ("diabetes, MLP, slow", Mlp, "", diabetes, (12,), "slow"),
        ("digits, CNN", Cnn, "", digits, (3, 8, 8), "sgd"),
        ("digits, CNN, slow", Cnn, "", digits, (3, 8, 8), "slow"),
        ("wine, CNN, Adam", Cnn, "", wine, (3, 8, 8), "adam"),
        ("digits, ViT, Adam", Vit, "", digits, (8, 6), "adam"),
        ("cancer, ViT", Vit, "", cancer, (8, 6), "sgd"),
        ("sequences, GRU", Gru, "", sequences, (8, 6), "sgd"),
        ("sequences, GRU, Adam", Gru, "", sequences, (8, 6), "adam"),
        ("digits, GNN", Gnn, "", digits, (8, 6), "sgd"),
        ("digits, MLP, squares", Mlp, "square", digits, (12,), "sgd"),
        ("digits, CNN, root", Cnn, "backward", digits, (3, 8, 8), "sgd"),
        ("cancer, ViT, logits", Vit, "logits", cancer, (8, 6), "sgd"),
        ("sequences, GRU, exp", Gru, "exp", sequences, (8, 6), "sgd"),
        ("wine, GNN, epsilon", Gnn, "epsilon", wine, (8, 6), "sgd"),
        ("digits, MLP, stalled", Mlp, "stalled", digits, (12,), "sgd"),
    ]
    return [
        Task(name, _network(family, fault, data, into), *data, OPTIMIZERS[optimizer])
        for name, family, fault, data, into, optimizer in rows
    ]


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
    "slow": lambda model: torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=3e-3),
}


def _network(
    family: type[nn.Module], fault: str, data: tuple[torch.Tensor, torch.Tensor], into: Any
) -> Callable[[], nn.Module]:
    inputs, targets = data
    classes = 1 if targets.is_floating_point() else int(targets.max()) + 1
    gate = FAULTS[fault] if fault else Healthy
    return lambda: Adapted(family, gate, tuple(inputs.shape[1:]), into, classes)


def scaled(data: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of one of scikit-learn's sets, each feature of mean 0 and deviation 1."""
    inputs = torch.tensor(data.data, dtype=torch.float32)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0).clamp(min=1e-3)
    return inputs, torch.tensor(
        data.target, dtype=torch.float32 if data.target.dtype.kind == "f" else torch.int64
    )


def _sequences() -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of eight steps; the class is where their noise has a bump."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (512,), generator=chance)
    values = torch.randn(512, 8, 6, generator=chance)
    values[torch.arange(512), labels * 2] += 1.5
    return values, labels
