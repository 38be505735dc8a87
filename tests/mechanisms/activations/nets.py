"""A net of everything that the technique treats in a way of its own, and what tests ask of it."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from halfstep import Engine, recipe
from halfstep.mechanisms.activations.store import Kept, Saved, Whole

if TYPE_CHECKING:
    from halfstep.mechanisms.activations.technique import CompressedActivations

ENOUGH = 4096
"""Elements from which a tensor is compressed."""


class Net(nn.Module):
    """What the technique treats in a way of its own, once each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(8, 16, 3, padding=1)
        self.right = nn.Conv2d(8, 16, 1)
        self.rows = nn.LayerNorm(64)
        self.widen = nn.Linear(64, 64)
        self.head = nn.Linear(16 * 64, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.norm(self.stem(images)), inplace=True)
        features = functional.max_pool2d(features, 2)
        features = self.left(features) + self.right(features)
        rows = self.widen(self.rows(features.flatten(2)))
        return self.head(functional.gelu(rows).flatten(1))


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(16, 3, 16, 16, generator=generator), torch.arange(16) % 5


def gradients(model: nn.Module, spec: Any, draws: int = 1) -> tuple[float, torch.Tensor]:
    """Return the loss and the gradients of all parameters, `[draws, parameters]`, without steps."""
    images, labels = batch()
    found = []
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=spec) as engine:
        for _ in range(draws):
            with engine.autocast():
                loss = cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss)
            found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
            engine.step()
    return loss.item(), torch.stack(found)


def live() -> int:
    """Return how many tensors there are, and notes of saved ones."""
    gc.collect()
    kinds = (torch.Tensor, Kept, Saved, Whole)
    return sum(type(each) in kinds for each in gc.get_objects())


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return functional.cosine_similarity(one, other, dim=0).item()


class using:  # noqa: N801  (a context, written as one)
    """Hold the technique of a recipe over a piece of code, without an engine."""

    def __init__(self, name: str) -> None:
        (self.technique,) = recipe(name).techniques(seed=7)
        self.technique.prepare([], [])

    def __enter__(self) -> CompressedActivations:
        self.context = self.technique.forward(torch.device("cpu"))
        self.context.__enter__()
        return self.technique

    def __exit__(self, *raised: object) -> None:
        self.context.__exit__(*raised)


def saved() -> list[Kept]:
    """Return what is kept now, of tensors that are large enough."""
    gc.collect()
    kept = {id(each.kept): each.kept for each in gc.get_objects() if type(each) is Saved}
    return list(kept.values())


def relative_error(call: Any, values: torch.Tensor, name: str = "act8") -> float:
    """Return how far the gradient of `values` is from the exact one, over the size of that."""
    found = []
    for context in (contextlib.nullcontext(), using(name)):
        given = values.clone().requires_grad_()
        with context:
            result = call(given * 1.0)
        weights = torch.randn(result.shape, generator=torch.Generator().manual_seed(3))
        result.backward(weights.to(result.dtype))
        found.append(given.grad.float())
    return ((found[1] - found[0]).norm() / found[0].norm()).item()
