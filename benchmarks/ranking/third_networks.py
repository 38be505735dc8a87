"""Networks of the third set of tasks that take tables, sets, graphs or points."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class Prices(nn.Module):
    """Two hidden layers of SELU, and an output moved from units to euros, (N, columns)."""

    def __init__(self, columns: int, mean: float, deviation: float, wide: int = 48) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation
        self.net = nn.Sequential(
            nn.Linear(columns, wide),
            nn.SELU(),
            nn.Linear(wide, wide),
            nn.SELU(),
            nn.Linear(wide, 1),
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return prices, (N)."""
        return self.net(rows)[:, 0] * self.deviation + self.mean


class Gat(nn.Module):
    """Two layers of attention over neighbours, (N, nodes, nodes + columns): bonds, features.

    Veličković et al., Graph Attention Networks, 2018, equations 1 to 6.
    """

    def __init__(self, nodes: int, columns: int, out: int, heads: int = 4, wide: int = 8) -> None:
        super().__init__()
        self.sizes, self.heads = (nodes, columns), heads
        self.values = nn.ModuleList(
            nn.Linear(before, heads * wide, bias=False) for before in (columns, heads * wide)
        )
        self.sent, self.got = (
            nn.ParameterList(nn.Parameter(torch.randn(heads, wide) * 0.3) for _ in "12")
            for _ in "12"
        )
        self.head = nn.Linear(heads * wide, out)

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return logits of the first node."""
        bonds, hidden = packed.split(self.sizes, 2)
        apart = (bonds + torch.eye(self.sizes[0], device=bonds.device) == 0)[:, None]
        for values, sent, got in zip(self.values, self.sent, self.got, strict=True):
            nodes = values(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            to, of = (nodes * got[:, None]).sum(-1), (nodes * sent[:, None]).sum(-1)
            scores = functional.leaky_relu(to[..., None] + of[..., None, :], 0.2)
            shares = scores.masked_fill(apart, -math.inf).softmax(-1).to(nodes.dtype)
            hidden = functional.elu((shares @ nodes).transpose(1, 2).flatten(2))
        return self.head(hidden[:, 0])


class DeepSet(nn.Module):
    """A network of each member, their plain sum, and a network of the sum, (N, members, 3).

    Zaheer et al., Deep Sets, 2017, theorem 2.
    """

    def __init__(self, columns: int, wide: int = 24) -> None:
        super().__init__()
        self.each = nn.Sequential(
            nn.Linear(columns, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU()
        )
        self.all = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1))

    def forward(self, members: torch.Tensor) -> torch.Tensor:
        """Return numbers."""
        return self.all(self.each(members).sum(1))


class RealNvp(nn.Module):
    """The log-density of places in the plane, by affine couplings without a bound, (N, 2).

    Dinh et al., Density Estimation Using Real NVP, 2017, equations 6 to 8.
    """

    def __init__(self, couplings: int = 6, wide: int = 32) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(1, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU())
            for _ in range(couplings)
        )
        heads = [nn.Linear(wide, 2) for _ in range(couplings)]
        for head in heads:
            nn.init.normal_(head.weight, std=0.01)
        self.heads = nn.ModuleList(heads)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """Return log-densities, (N)."""
        kept, moved = places.chunk(2, 1)
        grown = torch.zeros_like(kept)
        for net, head in zip(self.nets, self.heads, strict=True):
            scale, shift = head(net(kept)).chunk(2, 1)
            kept, moved = moved * scale.exp() + shift, kept
            grown = grown + scale
        squares = kept.square() + moved.square()
        return (grown - 0.5 * squares)[:, 0] - math.log(2 * math.pi)


class Energy(nn.Module):
    """Energies of samples over a sharp temperature, (N, candidates, columns)."""

    def __init__(self, columns: int, temperature: float, wide: int = 64) -> None:
        super().__init__()
        self.temperature = temperature
        self.net = nn.Sequential(
            nn.Linear(columns, wide), nn.SiLU(), nn.Linear(wide, wide), nn.SiLU()
        )
        self.head = nn.Linear(wide, 1)

    def forward(self, candidates: torch.Tensor) -> torch.Tensor:
        """Return logits of which candidate is true."""
        return self.head(self.net(candidates))[..., 0] / self.temperature


class Physical(nn.Module):
    """The second derivative of a network, by differences, and its ends, (N, 1) of 0 to 1.

    Raissi et al., Physics-informed Neural Networks, 2019, section 3, with the derivative of a grid.
    """

    def __init__(self, apart: float, wide: int = 32) -> None:
        super().__init__()
        self.apart = apart
        self.net = nn.Sequential(
            nn.Linear(1, wide), nn.Tanh(), nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, 1)
        )

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return second derivatives divided by pi squared, and both ends, (N, 3)."""
        low, middle, high = (self.net(points + shift) for shift in (-self.apart, 0.0, self.apart))
        second = (low - 2 * middle + high) / (self.apart * math.pi) ** 2
        ends = [self.net(torch.full_like(points, end)) for end in (0.0, 1.0)]
        return torch.cat([second, *ends], 1)


class Ranker(nn.Module):
    """Scores of documents behind BatchNorm of raw counts, (N, documents, columns)."""

    def __init__(self, columns: int, wide: int = 48) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(columns)
        self.net = nn.Sequential(
            nn.Linear(columns, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU()
        )
        self.head = nn.Linear(wide, 1)

    def forward(self, documents: torch.Tensor) -> torch.Tensor:
        """Return scores, (N, documents)."""
        return self.head(self.net(self.norm(documents.transpose(1, 2)).transpose(1, 2)))[..., 0]


class Embedder(nn.Module):
    """Embeddings of digits, gated by themselves as in squeeze-excitation, (N, 3, 64)."""

    def __init__(self, columns: int, wide: int = 64, out: int = 16) -> None:
        super().__init__()
        self.hidden = nn.Linear(columns, wide)
        self.gate = nn.Sequential(nn.Linear(wide, 8), nn.ReLU(), nn.Linear(8, wide), nn.Sigmoid())
        self.head = nn.Linear(wide, out)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return embeddings, (N, 3, out)."""
        hidden = torch.relu(self.hidden(rows))
        return self.head(hidden * self.gate(hidden))
