"""Healthy networks; many of them contain something that only looks dangerous."""

import math

import torch
from gnn import FEATURES, unpack
from torch import Tensor, nn
from torch.nn import functional as F
from vit import WIDTH, Attention, Block, Encoder


def batch_norm() -> nn.Module:
    """BatchNorm of eps 1e-5."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8, eps=1e-5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128, 4),
    )


class Residual(nn.Module):
    """A residual block behind GroupNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(2, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(F.silu(self.norm(x)))


def residual() -> nn.Module:
    """A residual stream that does not grow."""
    stem = nn.Conv2d(1, 8, 3, padding=1)
    return nn.Sequential(stem, Residual(8), Residual(8), nn.Flatten(), nn.Linear(512, 4))


class Gaussians(nn.Module):
    """exp of bounded negative numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 4)
        self.centre = nn.Parameter(torch.randn(12, 4))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        difference = self.project(x)[:, None] - self.centre
        return self.head(torch.exp(-difference.pow(2).mean(-1)))


def scaled_attention() -> nn.Module:
    """Attention scaled as usual."""
    return Encoder(*[Block(Attention(WIDTH, 2, 1.0, math.sqrt(WIDTH / 2))) for _ in range(2)])


class SmallMask(Attention):
    """A mask of -1e4, which fp16 holds."""

    def forward(self, x: Tensor) -> Tensor:
        q, v = self.split(self.qk(x)), self.split(self.v(x))
        scores = q @ q.transpose(-2, -1) / self.late
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -1e4).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def small_mask() -> nn.Module:
    """A causal mask of -1e4."""
    return Encoder(Block(SmallMask(WIDTH, 2, 1.0, 4.0)))


class HandSoftmaxNet(nn.Module):
    """A softmax by hand that subtracts the maximum first."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 16, batch_first=True)
        self.score = nn.Linear(16, 1)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x)
        score = 20 * self.score(h)
        weight = torch.exp(score - score.amax(1, keepdim=True))
        return self.head((weight * h).sum(1) / weight.sum(1))


class Lstm(nn.Module):
    """A plain LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(6, 16, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.rnn(x)
        return self.head(h.mean(1))


class StableSoftplusNet(nn.Module):
    """max(x, 0) + log1p(exp(-|x|)) of inputs above 12."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.fc1.bias.copy_(torch.linspace(0.0, 16.0, 32))

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        return self.fc2((h.clamp(min=0) + torch.log1p(torch.exp(-h.abs()))) * 0.2)


def dropout() -> nn.Module:
    """Dropout, LayerNorm and GELU."""
    hidden = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1))
    return nn.Sequential(hidden, nn.Linear(32, 4))


class ClampedMean(nn.Module):
    """The mean of the neighbours over a degree of at least one."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(FEATURES, 16), nn.Linear(FEATURES, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, graph: Tensor) -> Tensor:
        h, edge = unpack(graph)
        mean = edge @ h / edge.sum(-1, keepdim=True).clamp(min=1)
        return self.head(F.relu(self.own(h) + self.other(mean)).mean(1))


class BoundedSquares(nn.Module):
    """Squares of a tanh."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.head = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.filters(x))
        return self.head((h * h).mean(dim=(2, 3)) * 4)


class Cosine(nn.Module):
    """Cosine similarity of nonzero vectors, eps 1e-8, times a temperature of 20."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        self.proxy = nn.Parameter(torch.randn(4, 16))

    def forward(self, x: Tensor) -> Tensor:
        return 20 * F.cosine_similarity(self.body(x)[:, None], self.proxy, dim=-1, eps=1e-8)


class ScaledEmbedding(nn.Module):
    """Embeddings times sqrt(width)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(50, WIDTH), nn.LayerNorm(WIDTH)
        self.block = Block(Attention(WIDTH, 2, 1.0, 4.0))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, text: Tensor) -> Tensor:
        return self.head(self.block(self.norm(self.embed(text) * math.sqrt(WIDTH)))[:, 0])


class SafeNorm(nn.Module):
    """A vector divided by its norm plus 1e-3; the norm is several hundred."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        with torch.no_grad():
            self.fc.weight.mul_(100)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return self.head(h / (h.norm(dim=-1, keepdim=True) + 1e-3) * 4)


def plain() -> nn.Module:
    """A plain MLP; its loss is summed over the batch."""
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)
    )


def summed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Cross-entropy, summed over the batch: gradients 32 times as large."""
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def underflow(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """A loss in units of 1e-4, whose gradients need a loss scale, not an exception."""
    return F.cross_entropy(model(batch[0]), batch[1]) * 1e-4
