"""Networks of the third set of tasks that take sequences, or step through time."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class LstmWriter(nn.Module):
    """An LSTM whose output layer is its embedding, (N, length) of tokens.

    Merity et al., Regularizing and Optimizing LSTM Language Models, 2018, section 4.5.
    """

    def __init__(self, tokens: int, wide: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, wide)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.lstm = nn.LSTM(wide, wide, batch_first=True)
        self.bias = nn.Parameter(torch.zeros(tokens))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits of each next token."""
        return functional.linear(self.lstm(self.embed(text))[0], self.embed.weight, self.bias)


class TiedGpt(nn.Module):
    """GPT-2: pre-norm causal blocks, embeddings of deviation 0.02 tied to the logits.

    Radford et al., Language Models are Unsupervised Multitask Learners, 2019, section 2.3.
    """

    def __init__(self, tokens: int, length: int, wide: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, wide), nn.Embedding(length, wide)
        for each in (self.embed, self.place):
            nn.init.normal_(each.weight, std=0.02)
        self.mixed = nn.ModuleList(nn.Linear(wide, 3 * wide) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(wide, wide) for _ in range(depth))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU("tanh"), nn.Linear(4 * wide, wide))
            for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(wide) for _ in range(2 * depth + 1))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Return logits of each next token."""
        hidden = self.embed(text) + self.place.weight
        for at, (mixed, out, feed) in enumerate(zip(self.mixed, self.out, self.feed, strict=True)):
            heads = mixed(self.norms[2 * at](hidden)).unflatten(-1, (3, 4, -1)).transpose(1, 3)
            query, key, value = heads.unbind(2)  # each (N, heads, length, wide / heads)
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + out(seen.transpose(1, 2).flatten(2))
            hidden = hidden + feed(self.norms[2 * at + 1](hidden))
        return functional.linear(self.norms[-1](hidden), self.embed.weight)


class Listener(nn.Module):
    """A GRU both ways over a track, (N, length, channels), for CTC."""

    def __init__(self, channels: int, out: int, wide: int = 24) -> None:
        super().__init__()
        self.gru = nn.GRU(channels, wide, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * wide, out)

    def forward(self, tracks: torch.Tensor) -> torch.Tensor:
        """Return logits of each step."""
        return self.head(self.gru(tracks)[0])


class Crf(nn.Module):
    """How unlikely tags of words are, by a chain of log-sum-exp, (N, 2, length): words, tags.

    Lample et al., Neural Architectures for Named Entity Recognition, 2016, section 2.2.
    """

    def __init__(self, words: int, tags: int, wide: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, wide)
        self.near = nn.Conv1d(wide, wide, 3, padding=1)
        self.emit = nn.Linear(wide, tags)
        self.follow = nn.Parameter(torch.zeros(tags, tags))

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the log of all paths' weight less that of the tags' path, (N)."""
        words, tags = packed.unbind(1)
        hidden = torch.relu(self.near(self.embed(words).transpose(1, 2))).transpose(1, 2)
        scores = self.emit(hidden)
        path = scores.gather(2, tags[..., None]).sum((1, 2))
        path = path + self.follow[tags[:, :-1], tags[:, 1:]].sum(1)
        every = scores[:, 0]
        for score in scores.unbind(1)[1:]:
            every = torch.logsumexp(every[:, :, None] + self.follow, 1) + score
        return torch.logsumexp(every, 1) - path


class WaveNet(nn.Module):
    """Gated causal convolutions of growing dilation, (N, 1, length).

    Van den Oord et al., WaveNet, 2016, section 2.3.
    """

    def __init__(self, out: int, wide: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, wide, 1)
        self.gated = nn.ModuleList(nn.Conv1d(wide, 2 * wide, 2, dilation=2**at) for at in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(wide, wide, 1) for _ in range(4))
        self.head = nn.Linear(wide, out)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return numbers for what follows the series."""
        hidden, last = self.stem(series), []
        for at, (gated, skip) in enumerate(zip(self.gated, self.skips, strict=True)):
            value, gate = gated(functional.pad(hidden, (2**at, 0))).chunk(2, 1)
            skipped = skip(torch.tanh(value) * torch.sigmoid(gate))
            hidden = hidden + skipped
            last.append(skipped[..., -1])
        return self.head(torch.relu(torch.stack(last).sum(0)))


class Flowing(nn.Module):
    """A state that moves at a learned speed through 20 steps of Heun's method, (N, 2).

    Chen et al., Neural Ordinary Differential Equations, 2018, section 2.
    """

    def __init__(self, span: float, steps: int = 20, wide: int = 32) -> None:
        super().__init__()
        self.step, self.steps = span / steps, steps
        self.speed = nn.Sequential(nn.Linear(2, wide), nn.Tanh(), nn.Linear(wide, 2))

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """Return the state after the span."""
        for _ in range(self.steps):
            begun = self.speed(state)
            ended = self.speed(state + self.step * begun)
            state = state + self.step / 2 * (begun + ended)
        return state
