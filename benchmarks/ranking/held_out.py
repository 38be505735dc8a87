"""Twenty tasks that no measure of damage was chosen with, written after it was frozen.

None has the network, data and optimizer of a task in view. Networks with a weakness in half
precision are marked by it in their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sklearn import datasets
from torch import nn

from ranking.networks import (
    AttentionGnn,
    BothWaysGru,
    ColumnTransformer,
    DeepMlp,
    DenseCnn,
    GridGnn,
    KernelMlp,
    NormedMlp,
    PatchVit,
    PlainCnn,
    RawMlp,
    SummingGru,
    SumPoolCnn,
    TextGru,
    TextTransformer,
)
from ranking.tasks import Task, scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    Samples = tuple[torch.Tensor, torch.Tensor]
    Made = Callable[[nn.Module], torch.optim.Optimizer]

SAMPLES, LENGTH = 512, 16


def held_out() -> list[Task]:
    """Return the twenty tasks."""
    pixels, digits = scaled(datasets.load_digits())
    grid = pixels, digits
    images = pixels.reshape(-1, 1, 8, 8), digits
    wine, cancer, iris, diabetes = (
        scaled(data)
        for data in (
            datasets.load_wine(),
            datasets.load_breast_cancer(),
            datasets.load_iris(),
            datasets.load_diabetes(),
        )
    )
    progression = diabetes[0], (diabetes[1] - diabetes[1].mean()) / diabetes[1].std()
    raw = torch.tensor(datasets.load_wine().data, dtype=torch.float32), wine[1]
    waves, counts = _waves(), _counts()
    letters, text = _text()
    rings = _rings()
    return [
        Task("digits, plain CNN, SGD", lambda: PlainCnn(10), *images, sgd(0.05, 0.9)),
        Task("digits, dense CNN, AdamW", lambda: DenseCnn(10), *images, adamw(2e-3)),
        Task(
            "digits, tanh CNN, RMSprop, eps 1e-4",
            lambda: PlainCnn(10, nn.Tanh),
            *images,
            rmsprop(1e-3, eps=1e-4),
        ),
        Task("digits, CNN of large sums, Adam", lambda: SumPoolCnn(10), *images, adam(3e-3)),
        Task("digits, patch ViT, AdamW", lambda: PatchVit(10), *images, adamw(1e-3)),
        Task(
            "digits, ViT of large logits, no norms, SGD",
            lambda: PatchVit(10, 60.0, norms=False),
            *images,
            sgd(0.05, 0.9),
        ),
        Task(
            "cancer, transformer of columns, RMSprop",
            lambda: ColumnTransformer(30, 2),
            *cancer,
            rmsprop(1e-3),
        ),
        Task("text, transformer, AdamW, eps 1e-6", _writer(letters), *text, adamw(3e-3, eps=1e-6)),
        Task("text, GRU, Adam", lambda: TextGru(letters), *text, adam(3e-3)),
        Task("waves, GRU both ways, SGD", lambda: BothWaysGru(3, 4), *waves, sgd(0.1, 0.9)),
        Task(
            "waves, GRU both ways, AdamW, eps 1e-4",
            lambda: BothWaysGru(3, 4, norm=False),
            *waves,
            adamw(3e-3, eps=1e-4),
        ),
        Task("counts, GRU of sums of exp, SGD", lambda: SummingGru(3, 1), *counts, sgd(0.02, 0.9)),
        Task("wine, MLP with LayerNorm, SGD", _normed(13, 3, nn.LayerNorm), *wine, sgd(0.1)),
        Task(
            "cancer, MLP with BatchNorm, AdamW",
            _normed(30, 2, nn.BatchNorm1d),
            *cancer,
            adamw(1e-3),
        ),
        Task("raw wine, MLP of squares, RMSprop", lambda: RawMlp(13, 3), *raw, rmsprop(1e-3)),
        Task(
            "iris, kernels of exp, Adam, eps 1e-4", lambda: KernelMlp(4, 3), *iris, adam(1e-2, 1e-4)
        ),
        Task("diabetes, deep MLP, tiny rate, SGD", lambda: DeepMlp(10, 1), *progression, sgd(1e-5)),
        Task("digits, GNN of a grid, AdamW", lambda: GridGnn(8, 10, norm=True), *grid, adamw(3e-3)),
        Task(
            "rings, attention GNN, SGD",
            lambda: AttentionGnn(6, 3),
            *rings,
            sgd(0.05, 0.9),
        ),
        Task(
            "digits, GNN of sums, RMSprop",
            lambda: GridGnn(8, 10, norm=False, total=True),
            *grid,
            rmsprop(1e-3),
        ),
    ]


def sgd(lr: float, momentum: float = 0.0) -> Made:
    """Return a maker of SGD."""
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def adam(lr: float, eps: float = 1e-8) -> Made:
    """Return a maker of Adam."""
    return lambda model: torch.optim.Adam(model.parameters(), lr=lr, eps=eps)


def adamw(lr: float, eps: float = 1e-8) -> Made:
    """Return a maker of AdamW."""
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr, eps=eps, weight_decay=0.02)


def rmsprop(lr: float, eps: float = 1e-8) -> Made:
    """Return a maker of RMSprop."""
    return lambda model: torch.optim.RMSprop(model.parameters(), lr=lr, eps=eps)


def _normed(columns: int, classes: int, norm: type[nn.Module]) -> Callable[[], nn.Module]:
    return lambda: NormedMlp(columns, classes, norm)


def _writer(letters: int) -> Callable[[], nn.Module]:
    return lambda: TextTransformer(letters, LENGTH)


def _rings() -> Samples:
    """Return points in six dimensions; the class is how far they are from the centre."""
    points, classes = datasets.make_gaussian_quantiles(
        n_samples=SAMPLES, n_features=6, random_state=6
    )
    return torch.tensor(points, dtype=torch.float32), torch.tensor(classes, dtype=torch.int64)


def _waves() -> Samples:
    """Return sines in noise on three channels; the class is their frequency."""
    chance = torch.Generator().manual_seed(8)
    labels = torch.randint(0, 4, (SAMPLES,), generator=chance)
    phase = torch.rand(SAMPLES, 1, 3, generator=chance) * 6.28
    time = torch.arange(12)[None, :, None]
    values = torch.sin(time * (0.4 + 0.35 * labels[:, None, None]) + phase)
    return values + 0.5 * torch.randn(values.shape, generator=chance), labels


def _counts() -> Samples:
    """Return sequences of events; the number is how many of them are on the first channel."""
    chance = torch.Generator().manual_seed(9)
    events = (torch.rand(SAMPLES, 12, 3, generator=chance) < 0.4).float()
    return events, events[..., 0].sum(1) / 4


def _text() -> tuple[int, Samples]:
    """Return how many letters an English text has, and pieces of it, each with what follows."""
    text = " ".join(datasets.load_iris().DESCR.lower().split())
    letters = sorted(set(text))
    coded = torch.tensor([letters.index(each) for each in text])
    pieces = coded[: len(coded) - 1].unfold(0, LENGTH, 3), coded[1:].unfold(0, LENGTH, 3)
    return len(letters), (pieces[0].contiguous(), pieces[1].contiguous())
