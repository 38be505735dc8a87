"""Networks of the held-out tasks, some with a weakness in half precision that is said of them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class PlainCnn(nn.Module):
    """Convolutions and pooling without norms, (N, 1, 8, 8)."""

    def __init__(self, classes: int, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            activation(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            activation(),
            nn.MaxPool2d(2),
        )
        self.head = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.body(images).flatten(1))


class DenseCnn(nn.Module):
    """Convolutions with BatchNorm whose inputs are all results before, (N, 1, 8, 8)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(wide), nn.ReLU(), nn.Conv2d(wide, 6, 3, padding=1))
            for wide in (6, 12, 18)
        )
        self.stem, self.head = nn.Conv2d(1, 6, 3, padding=1), nn.Linear(24, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.stem(images)
        for layer in self.layers:
            hidden = torch.cat([hidden, layer(hidden)], 1)
        return self.head(functional.relu(hidden).mean((2, 3)))


class SumPoolCnn(nn.Module):
    """Sums squared responses over the image: large sums, (N, 1, 8, 8)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 16, 3, padding=1)
        self.head = nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        response = self.conv(images) * 40
        energy = (response * response).sum((2, 3))
        return self.head(torch.log1p(energy))


class Attention(nn.Module):
    """Attention of one head; without a scale the product of queries and keys grows by `gain`."""

    def __init__(self, wide: int, gain: float | None = None) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(wide, wide), nn.Linear(wide, wide)
        self.value, self.out = nn.Linear(wide, wide), nn.Linear(wide, wide)
        self.gain, self.wide = gain, wide

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Mix the tokens."""
        query, key = self.query(tokens), self.key(tokens)
        if self.gain is not None:  # scaled only after the product
            logits = (query * self.gain) @ (key * self.gain).transpose(1, 2) / self.gain**2
        else:
            logits = query @ key.transpose(1, 2) * self.wide**-0.5
        if mask is not None:
            logits = logits.masked_fill(mask, -1e4)
        return self.out(logits.softmax(-1) @ self.value(tokens))


class RootMeanSquare(nn.Module):
    """RMSNorm as it is written by hand: the squares are in the format of the values."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(wide))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension."""
        return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class PatchVit(nn.Module):
    """Patches of 2 x 2, two pre-norm blocks, a learned position, (N, 1, 8, 8)."""

    def __init__(self, classes: int, gain: float | None = None, *, norms: bool = True) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 16, 2, stride=2)
        self.place = nn.Parameter(torch.randn(1, 16, 16) * 0.02)
        self.attend = nn.ModuleList(Attention(16, gain) for _ in range(2))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(16) if norms else nn.Identity() for _ in range(5))
        self.head = nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        tokens = self.patch(images).flatten(2).transpose(1, 2) + self.place
        for at in range(2):
            tokens = tokens + self.attend[at](self.norms[2 * at](tokens))
            tokens = tokens + self.feed[at](self.norms[2 * at + 1](tokens))
        return self.head(self.norms[4](tokens).mean(1))


class ColumnTransformer(nn.Module):
    """Each column of a table is a token, as in an FT-Transformer, (N, columns)."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, 12) * 0.3)
        self.bias = nn.Parameter(torch.zeros(columns, 12))
        self.attend, self.norm = Attention(12), nn.LayerNorm(12)
        self.head = nn.Linear(12, classes)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        tokens = rows[..., None] * self.weight + self.bias
        tokens = tokens + self.attend(self.norm(tokens))
        return self.head(tokens.mean(1))


class TextTransformer(nn.Module):
    """A causal block with RMSNorm by hand and a gated feed-forward layer, (N, length) of tokens."""

    def __init__(self, tokens: int, length: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, 24), nn.Embedding(length, 24)
        self.norms = nn.ModuleList(RootMeanSquare(24) for _ in range(3))
        self.attend = Attention(24)
        self.gate, self.up, self.down = nn.Linear(24, 48), nn.Linear(24, 48), nn.Linear(48, 24)
        self.head = nn.Linear(24, tokens)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits of each next token."""
        hidden = self.embed(text) + self.place.weight
        hidden = hidden + self.attend(self.norms[0](hidden), self.mask)
        normed = self.norms[1](hidden)
        hidden = hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))
        return self.head(self.norms[2](hidden))


class TextGru(nn.Module):
    """A GRU that predicts each next token, (N, length) of tokens."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.embed, self.gru = nn.Embedding(tokens, 16), nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, tokens)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits of each next token."""
        return self.head(self.gru(self.embed(text))[0])


class BothWaysGru(nn.Module):
    """A GRU in both directions with LayerNorm behind it, (N, length, channels)."""

    def __init__(self, channels: int, out: int, *, norm: bool = True) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, 12, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(24) if norm else nn.Identity()
        self.head = nn.Linear(24, out)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Return logits, or numbers."""
        return self.head(self.norm(self.gru(sequence)[0].mean(1)))


class SummingGru(nn.Module):
    """Adds up exponentials of its states over time: large sums of exp, (N, length, channels)."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(channels, 16, batch_first=True), nn.Linear(16, out)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Return numbers."""
        states = self.gru(sequence)[0]
        return self.head(torch.log(torch.exp(states + 9).sum(1)) - 9)


class NormedMlp(nn.Module):
    """Two linear layers, each with a norm of its own, (N, columns)."""

    def __init__(self, columns: int, out: int, norm: type[nn.Module], wide: int = 32) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(columns, wide),
            norm(wide),
            nn.GELU(),
            nn.Linear(wide, wide),
            norm(wide),
            nn.GELU(),
            nn.Linear(wide, out),
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits, or numbers."""
        return self.net(rows)


class RawMlp(nn.Module):
    """Takes columns as they are measured, some above 1,000, through RMSNorm by hand."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.norm, self.body = RootMeanSquare(columns), nn.Linear(columns, 32)
        self.head = nn.Linear(32, out)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(torch.relu(self.body(self.norm(rows))))


class KernelMlp(nn.Module):
    """Distances to learned centres, and exp of them: a network of radial basis functions."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(24, columns))
        self.head = nn.Linear(24, out)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        apart = rows[:, None] - self.centres
        distance = torch.sqrt(apart.pow(2).sum(-1) + 1e-8)
        return self.head(torch.exp(-distance))


class DeepMlp(nn.Module):
    """Six linear layers without norms, (N, columns)."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        wides = (columns, 32, 32, 32, 32, 32)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(wides))
        self.head = nn.Linear(32, out)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits, or numbers."""
        for layer in self.layers:
            rows = functional.leaky_relu(layer(rows))
        return self.head(rows)


class GridGnn(nn.Module):
    """Messages between neighbours of a grid, mean or sum, with or without norms, (N, nodes)."""

    def __init__(self, side: int, out: int, *, norm: bool, total: bool = False) -> None:
        super().__init__()
        place = torch.arange(side * side)
        row, column = place // side, place % side
        near = (row[:, None] - row).abs() + (column[:, None] - column).abs() <= 1
        graph = near.float()
        self.register_buffer("graph", graph if total else graph / graph.sum(1, keepdim=True))
        self.embed = nn.Linear(1, 12)
        self.messages = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(12) if norm else nn.Identity() for _ in range(3))
        self.head, self.total = nn.Linear(12, out), total

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.embed(nodes[..., None])
        for message, norm in zip(self.messages, self.norms, strict=True):
            hidden = torch.relu(norm(message(self.graph @ hidden)))
        pooled = hidden.sum(1) if self.total else hidden.mean(1)
        return self.head(torch.log1p(pooled) if self.total else pooled)


class AttentionGnn(nn.Module):
    """Graph attention over the columns of a table, (N, columns)."""

    def __init__(self, columns: int, out: int) -> None:
        super().__init__()
        self.embed, self.name = nn.Linear(1, 12), nn.Parameter(torch.randn(columns, 12) * 0.3)
        self.source, self.target = nn.Linear(12, 1), nn.Linear(12, 1)
        self.message, self.head = nn.Linear(12, 12), nn.Linear(12, out)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        nodes = self.embed(rows[..., None]) + self.name
        scores = functional.leaky_relu(self.source(nodes) + self.target(nodes).transpose(1, 2))
        weights = torch.exp(scores)
        weights = weights / weights.sum(-1, keepdim=True)
        return self.head(functional.elu(weights @ self.message(nodes)).mean(1))
