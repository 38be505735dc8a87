"""Attention networks with planted faults."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 32


class Attention(nn.Module):
    """Attention of one projection for queries and keys; `late` scales after the product."""

    def __init__(self, width: int, heads: int, gain: float, late: float) -> None:
        super().__init__()
        self.heads, self.late = heads, late
        self.qk = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        with torch.no_grad():
            self.qk.weight.mul_(gain)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, v = self.split(self.qk(x)), self.split(self.v(x))
        scores = q @ q.transpose(-2, -1)
        weights = (scores / self.late).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class EinsumAttention(Attention):
    """The same with einsum and a functional softmax."""

    def forward(self, x: Tensor) -> Tensor:
        q, v = self.split(self.qk(x)), self.split(self.v(x))
        scores = torch.einsum("bhid,bhjd->bhij", q, q)
        weights = F.softmax(scores / self.late, dim=-1)
        return self.out(torch.einsum("bhij,bhjd->bhid", weights, v).transpose(1, 2).flatten(2))


class MaskedAttention(Attention):
    """A causal mask of -1e9, which fp16 cannot hold."""

    def forward(self, x: Tensor) -> Tensor:
        q, v = self.split(self.qk(x)), self.split(self.v(x))
        scores = q @ q.transpose(-2, -1) / self.late
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, -1e9).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(WIDTH), attention
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Encoder(nn.Module):
    """Patches of 2 x 2 pixels, positions, blocks, mean, head."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, WIDTH, 2, stride=2)
        self.position = nn.Parameter(torch.randn(16, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def unscaled() -> nn.Module:
    """Scores beyond 65,504, divided only after the product; in the second of two blocks."""
    safe = Block(Attention(WIDTH, 2, 1.0, 4.0))
    return Encoder(safe, Block(Attention(WIDTH, 2, 300.0, 3e4)))


def einsum() -> nn.Module:
    """The same with einsum, in both blocks."""
    return Encoder(*[Block(EinsumAttention(WIDTH, 2, 300.0, 3e4)) for _ in range(2)])


def mask() -> nn.Module:
    """A mask of -1e9 in both blocks."""
    return Encoder(*[Block(MaskedAttention(WIDTH, 2, 1.0, 4.0)) for _ in range(2)])


class RootMeanSquare(nn.Module):
    """RMSNorm by hand."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class EmbeddingNet(nn.Module):
    """Embeddings scaled by far more than sqrt(width): their squares overflow in half parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, WIDTH)
        self.norm = RootMeanSquare(WIDTH)
        self.block = Block(Attention(WIDTH, 2, 1.0, 4.0))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, text: Tensor) -> Tensor:
        x = self.norm(self.embed(text) * (60 * math.sqrt(WIDTH)))
        return self.head(self.block(x)[:, 0])


class Proxies(nn.Module):
    """Distances to class proxies by |x|^2 - 2 x.p + |p|^2, where large terms cancel."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.proxy = nn.Parameter(torch.randn(classes, width) * 0.3 + 12.0)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 12.0
        square = (x * x).sum(-1, keepdim=True) + (self.proxy * self.proxy).sum(-1)
        return -(square - 2 * x @ self.proxy.t()) / 2


class ProxyNet(nn.Module):
    """A ViT whose logits are differences of numbers near 5,000."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Encoder(Block(Attention(WIDTH, 2, 1.0, 4.0)))
        self.body.head = nn.Linear(WIDTH, WIDTH)
        self.proxies = Proxies(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.proxies(self.body(x))
