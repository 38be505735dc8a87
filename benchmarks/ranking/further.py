"""Twelve further tasks, of other networks, data and optimizers: held out once, in view since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sklearn import datasets
from torch import nn

from ranking.tasks import Task, scaled

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES, TOKENS, LENGTH = 512, 12, 10


class Residual(nn.Module):
    """Three residual blocks with GroupNorm over small images, (N, 1, 8, 8)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv2d(12, 12, 3, padding=1))
            for _ in range(3)
        )
        self.head = nn.Linear(12, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.stem(images)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden.mean((2, 3)))


class Mixer(nn.Module):
    """Two blocks that mix tokens and then channels, (N, 8, 6)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 16)
        self.across = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.along = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.head = nn.Linear(16, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.embed(tokens)
        for at, (across, along) in enumerate(zip(self.across, self.along, strict=True)):
            mixed = across(self.norms[2 * at](hidden).transpose(1, 2)).transpose(1, 2)
            hidden = hidden + nn.functional.gelu(mixed)
            hidden = hidden + nn.functional.gelu(along(self.norms[2 * at + 1](hidden)))
        return self.head(hidden.mean(1))


class Recurrent(nn.Module):
    """An LSTM over sequences, (N, 8, 6)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(6, 20, batch_first=True), nn.Linear(20, classes)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.lstm(sequence)[0][:, -1])


class Gpt(nn.Module):
    """Two causal transformer blocks over tokens, (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, 24), nn.Embedding(LENGTH, 24)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits of each next token."""
        hidden = self.tokens(tokens) + self.places.weight
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for block in self.blocks:
            hidden = block(hidden, src_mask=mask.to(hidden.dtype))
        return self.head(self.norm(hidden))


class Separable(nn.Module):
    """Depthwise and pointwise convolutions with BatchNorm and an excitation, (N, 1, 8, 8)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False)
        self.wide = nn.Conv2d(16, 24, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide) for wide in (16, 16, 24))
        self.excite, self.head = nn.Linear(24, 24), nn.Linear(24, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = images
        for conv, norm in zip((self.stem, self.deep, self.wide), self.norms, strict=True):
            hidden = nn.functional.hardswish(norm(conv(hidden)))
        pooled = hidden.mean((2, 3))
        return self.head(pooled * torch.sigmoid(self.excite(pooled)))


def _deep(wide: int, out: int) -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(5):
        layers += [nn.Linear(wide, 24), nn.BatchNorm1d(24), nn.ELU()]
        wide = 24
    return nn.Sequential(*layers, nn.Linear(24, out))


def _plain(wide: int, out: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(wide, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, out)
    )


def further() -> list[Task]:
    """Return the twelve tasks."""
    images, digits = scaled(datasets.load_digits())
    images = images.reshape(-1, 1, 8, 8)
    iris = scaled(datasets.load_iris())
    made, classes = datasets.make_classification(
        SAMPLES, 20, n_informative=8, n_classes=3, random_state=1
    )
    moons, sides = datasets.make_moons(SAMPLES, noise=0.2, random_state=2)
    rings, values = datasets.make_friedman1(SAMPLES, 10, noise=0.5, random_state=3)
    values = (values - values.mean()) / values.std()
    sequences, bumps = _bumps()
    sentences = _sentences()
    number, whole = torch.float32, torch.int64
    tabular = torch.tensor(made, dtype=number), torch.tensor(classes, dtype=whole)
    plane = torch.tensor(moons, dtype=number), torch.tensor(sides, dtype=whole)
    curve = torch.tensor(rings, dtype=number), torch.tensor(values, dtype=number)
    large = curve[0], curve[1] * 300 + 1000
    # Sequences of a grammar: each token but the last is followed by the one to be predicted.
    text = sentences[:, :-1].contiguous(), sentences[:, 1:].contiguous()
    return [
        Task("images, residual, AdamW", lambda: Residual(10), images, digits, _adamw(2e-3)),
        Task("images, residual, Nesterov", lambda: Residual(10), images, digits, _nesterov),
        Task("images, separable, RMSprop", lambda: Separable(10), images, digits, _rmsprop),
        Task("images, separable, slow", lambda: Separable(10), images, digits, _plain_sgd(0.003)),
        Task("bumps, mixer, AdamW", lambda: Mixer(4), sequences, bumps, _adamw(3e-3)),
        Task("bumps, LSTM, Adagrad", lambda: Recurrent(4), sequences, bumps, _adagrad),
        Task("grammar, GPT, AdamW", Gpt, *text, _adamw(3e-3)),
        Task("grammar, GPT, SGD", Gpt, *text, _nesterov),
        Task("tabular, deep MLP, SGD", lambda: _deep(20, 3), *tabular, _plain_sgd(0.05)),
        Task("iris, tanh MLP, NAdam", lambda: _plain(4, 3), *iris, _nadam),
        Task("moons, tanh MLP, RMSprop", lambda: _plain(2, 2), *plane, _rmsprop),
        Task("Friedman, targets near 1000", lambda: _plain(10, 1), *large, _adamw(1e-2)),
    ]


Optimizer = torch.optim.Optimizer


def _adamw(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)


def _plain_sgd(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr)


def _nesterov(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)


def _rmsprop(model: nn.Module) -> Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=1e-3)


def _adagrad(model: nn.Module) -> Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.03)


def _nadam(model: nn.Module) -> Optimizer:
    return torch.optim.NAdam(model.parameters(), lr=3e-3)


def _bumps() -> tuple[torch.Tensor, torch.Tensor]:
    """Return noise with a bump; the class is how wide the bump is."""
    chance = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 4, (SAMPLES,), generator=chance)
    values = torch.randn(SAMPLES, 8, 6, generator=chance)
    wide = torch.arange(8) <= 2 * labels[:, None]
    return values + wide[..., None] * 0.8, labels


def _sentences() -> torch.Tensor:
    """Return sequences of tokens in which each mostly follows from the one before."""
    chance = torch.Generator().manual_seed(5)
    follows = torch.randint(0, TOKENS, (TOKENS,), generator=chance)
    rows = [torch.randint(0, TOKENS, (SAMPLES,), generator=chance)]
    for _ in range(LENGTH):
        noise = torch.randint(0, TOKENS, (SAMPLES,), generator=chance)
        surprise = torch.rand(SAMPLES, generator=chance) < 0.1
        rows.append(torch.where(surprise, noise, follows[rows[-1]]))
    return torch.stack(rows, 1)
