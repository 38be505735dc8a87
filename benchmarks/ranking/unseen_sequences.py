"""Networks of the unseen tasks that take tokens or series."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Llama(nn.Module):
    """Causal blocks with RMSNorm, rotary positions and SwiGLU, (N, length) of tokens.

    With `experts`, each feed-forward layer is that many, of which a router picks the best two.
    """

    def __init__(self, tokens: int, length: int, depth: int = 2, experts: int = 0) -> None:
        super().__init__()
        wide = 32
        self.embed = nn.Embedding(tokens, wide)
        angles = torch.arange(length)[:, None] * 10000 ** -(torch.arange(4) / 4)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.mixed = nn.ModuleList(nn.Linear(wide, 3 * wide, bias=False) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(wide, wide, bias=False) for _ in range(depth))
        self.feed = nn.ModuleList(
            Experts(wide, experts) if experts else Gated(wide) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.RMSNorm(wide, eps=1e-5) for _ in range(2 * depth + 1))
        self.head = nn.Linear(wide, tokens, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits of each next token."""
        hidden = self.embed(text)
        for at, (mixed, out, feed) in enumerate(zip(self.mixed, self.out, self.feed, strict=True)):
            heads = mixed(self.norms[2 * at](hidden)).unflatten(-1, (3, -1, 8)).transpose(1, 3)
            query, key, value = heads.unbind(2)  # each (N, heads, length, 8)
            seen = functional.scaled_dot_product_attention(
                self._turned(query), self._turned(key), value, is_causal=True
            )
            hidden = hidden + out(seen.transpose(1, 2).flatten(2))
            hidden = hidden + feed(self.norms[2 * at + 1](hidden))
        return self.head(self.norms[-1](hidden))

    def _turned(self, values: torch.Tensor) -> torch.Tensor:
        left, right = values.chunk(2, -1)
        cos, sin = self.cos.to(values.dtype), self.sin.to(values.dtype)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


class Gated(nn.Module):
    """The feed-forward layer SwiGLU, (..., wide)."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(wide, 2 * wide, bias=False) for _ in "12")
        self.down = nn.Linear(2 * wide, wide, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the same shape."""
        return self.down(functional.silu(self.gate(values)) * self.up(values))


class Experts(nn.Module):
    """Feed-forward layers, of which a router picks two per token as in Mixtral, (..., wide)."""

    def __init__(self, wide: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(wide, experts, bias=False)
        self.experts = nn.ModuleList(Gated(wide) for _ in range(experts))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the same shape."""
        best, picked = self.router(values).topk(2, -1)
        shares = functional.one_hot(picked, len(self.experts)).to(best.dtype)
        shares = (best.softmax(-1).to(best.dtype)[..., None] * shares).sum(-2)
        found = torch.stack([expert(values) for expert in self.experts], -1)
        return (found * shares[..., None, :]).sum(-1)


class Encoder(nn.Module):
    """Two post-norm layers over tokens with learned positions, as in BERT, (N, length).

    Returns logits for each token, or with `pooled` for the sequence.
    """

    def __init__(self, tokens: int, length: int, out: int, *, pooled: bool) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, 32), nn.Embedding(length, 32)
        self.norm, self.pooled = nn.LayerNorm(32), pooled
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True) for _ in "12"
        )
        self.head = nn.Linear(32, out)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.norm(self.embed(text) + self.place.weight)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1) if self.pooled else hidden)


class T5(nn.Module):
    """Two blocks with a bias for each distance, and attention without a scale, (N, length).

    Raffel et al., Exploring the Limits of Transfer Learning, 2020, section 2.1. Unlike there, the
    initial weights of the queries are not smaller by the scale that is left out.
    """

    def __init__(self, tokens: int, length: int, wide: int = 32) -> None:
        super().__init__()
        self.embed, self.distance = nn.Embedding(tokens, wide), nn.Embedding(2 * length - 1, 2)
        place = torch.arange(length)
        self.register_buffer("apart", place[:, None] - place + length - 1)
        self.mixed = nn.ModuleList(nn.Linear(wide, 3 * wide, bias=False) for _ in "12")
        self.out = nn.ModuleList(nn.Linear(wide, wide, bias=False) for _ in "12")
        self.feed = nn.ModuleList(
            nn.Sequential(
                nn.Linear(wide, 2 * wide, bias=False),
                nn.ReLU(),
                nn.Linear(2 * wide, wide, bias=False),
            )
            for _ in "12"
        )
        for mixed in self.mixed:
            nn.init.normal_(mixed.weight, std=wide**-0.5)
        self.norms = nn.ModuleList(nn.RMSNorm(wide, eps=1e-6) for _ in range(5))
        self.head = nn.Linear(wide, tokens, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits of each token."""
        hidden = self.embed(text)
        bias = self.distance(self.apart).permute(2, 0, 1)
        for at, (mixed, out, feed) in enumerate(zip(self.mixed, self.out, self.feed, strict=True)):
            heads = mixed(self.norms[2 * at](hidden)).unflatten(-1, (3, 2, -1)).transpose(1, 3)
            query, key, value = heads.unbind(2)  # each (N, heads, length, wide / heads)
            shares = (query @ key.transpose(-1, -2) + bias).softmax(-1)
            hidden = hidden + out((shares @ value).transpose(1, 2).flatten(2))
            hidden = hidden + feed(self.norms[2 * at + 1](hidden))
        return self.head(self.norms[4](hidden))


class RunningAttention(nn.Module):
    """Causal linear attention: running sums of keys times values, (N, length, channels).

    Katharopoulos et al., Transformers are RNNs, 2020, equations 9 to 12.
    """

    def __init__(self, channels: int, out: int, wide: int = 12) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(channels, wide), nn.LayerNorm(wide)
        self.mixed, self.head = nn.Linear(wide, 3 * wide), nn.Linear(wide, out)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        hidden = self.embed(series)
        query, key, value = self.mixed(self.norm(hidden)).chunk(3, -1)
        query, key = functional.elu(query) + 1, functional.elu(key) + 1
        sums = (key[..., None] * value[..., None, :]).cumsum(1)
        seen = (query[..., None, :] @ sums).squeeze(-2)
        seen = seen / ((query * key.cumsum(1)).sum(-1, keepdim=True) + 1e-6)
        return self.head((hidden + seen)[:, -1])


class DeepLstm(nn.Module):
    """Two layers of LSTM and a forecast from the last state, (N, length, channels)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, 24, num_layers=2, batch_first=True)
        self.head = nn.Linear(24, 1)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return numbers."""
        return self.head(self.lstm(series)[0][:, -1])


class AttendedGru(nn.Module):
    """A GRU whose states are weighed by exp of scores of the words, (N, length) of tokens."""

    def __init__(self, tokens: int, out: int) -> None:
        super().__init__()
        self.embed, self.query = nn.Embedding(tokens, 32), nn.Parameter(torch.randn(32))
        self.gru, self.head = nn.GRU(32, 24, batch_first=True), nn.Linear(24, out)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        words = self.embed(text)
        shares = torch.exp(words @ self.query)[..., None]  # softmax without its maximum subtracted
        return self.head((shares * self.gru(words)[0]).sum(1) / shares.sum(1))
