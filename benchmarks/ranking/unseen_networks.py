"""Networks of the unseen tasks that take pairs, graphs or the columns of a table."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class TwoTowers(nn.Module):
    """CLIP: matches two views of each sample by a learned temperature, (N, 2, columns).

    Radford et al., Learning Transferable Visual Models, 2021, figure 3. A row of logits starts with
    the match; the other samples of the batch follow.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(columns, 48), nn.GELU(), nn.Linear(48, 24)) for _ in "12"
        )
        self.temperature = nn.Parameter(torch.tensor(2.6593))  # ln(1 / 0.07)

    def forward(self, views: torch.Tensor) -> torch.Tensor:
        """Return logits, (N, N)."""
        left, right = (
            functional.normalize(tower(view), dim=-1)
            for tower, view in zip(self.towers, views.unbind(1), strict=True)
        )
        logits = self.temperature.exp() * (left @ right.T)
        order = torch.arange(len(logits), device=logits.device)
        return logits.gather(1, (order[:, None] + order) % len(logits))


class Gin(nn.Module):
    """Sums over neighbours and over nodes, with BatchNorm, (N, nodes, nodes) of adjacency.

    Xu et al., How Powerful are Graph Neural Networks?, 2019, equations 4.1 and 4.2.
    """

    def __init__(self, out: int, wide: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(before, wide), nn.ReLU(), nn.Linear(wide, wide))
            for before in (1, wide, wide)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(wide) for _ in range(3))
        self.head = nn.Linear(3 * wide, out)

    def forward(self, graphs: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden, pooled = graphs.sum(-1, keepdim=True), []
        for layer, norm in zip(self.layers, self.norms, strict=True):
            summed = layer(hidden + graphs @ hidden)
            hidden = torch.relu(norm(summed.transpose(1, 2)).transpose(1, 2))
            pooled.append(hidden.sum(1))
        return self.head(torch.cat(pooled, -1))


class FactorizationMachine(nn.Module):
    """A linear model and products of all pairs of columns, by squares of them, (N, columns).

    Rendle, Factorization Machines, 2010, lemma 3.1.
    """

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.linear = nn.Linear(columns, 1)
        self.factors = nn.Parameter(torch.randn(columns, 8) * 0.01)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return numbers."""
        pairs = (rows @ self.factors).pow(2) - rows.pow(2) @ self.factors.pow(2)
        return self.linear(rows) + 0.5 * pairs.sum(-1, keepdim=True)


def perceptron(columns: int, out: int, activation: type[nn.Module], wide: int = 64) -> nn.Module:
    """Return two hidden layers without norms, (N, columns)."""
    return nn.Sequential(
        nn.Linear(columns, wide),
        activation(),
        nn.Linear(wide, wide),
        activation(),
        nn.Linear(wide, out),
    )


def behind_batchnorm(columns: int, out: int) -> nn.Module:
    """Return a hidden layer with BatchNorm, and BatchNorm of the columns before it."""
    return nn.Sequential(
        nn.BatchNorm1d(columns),
        nn.Linear(columns, 48),
        nn.BatchNorm1d(48),
        nn.ReLU(),
        nn.Linear(48, out),
    )
