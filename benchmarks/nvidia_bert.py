"""BERT for SQuAD with an unfused Adam, as in NVIDIA's DeepLearningExamples."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional

SIZES = {
    "bert_base_squad": {"width": 768, "depth": 12, "heads": 12},
    "bert_large_squad": {"width": 1024, "depth": 24, "heads": 16},
}


class Bert(nn.Module):
    """BERT as in NVIDIA's example: attention without a fused kernel, dropout of 0.1."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(30528, width)
        self.places = nn.Embedding(512, width)
        self.segments = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width, heads) for _ in range(depth))
        self.spans = nn.Linear(width, 2)

    def forward(
        self, words: torch.Tensor, segments: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Return the scores of the start and the end of the answer, shape (B, S, 2)."""
        places = torch.arange(words.shape[1])
        x = self.words(words) + self.places(places) + self.segments(segments)
        x = functional.dropout(self.norm(x), 0.1, training=True)
        added = (1 - mask[:, None, None].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, added)
        return self.spans(x)


class BertLayer(nn.Module):
    """Self-attention and two linear layers, each part followed by a LayerNorm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """Return the output, shape (B, S, width)."""
        batch, length, width = x.shape
        shape = batch, length, self.heads, width // self.heads
        query, key, value = (
            part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / shape[-1] ** 0.5 + added
        shares = functional.dropout(functional.softmax(scores, -1), 0.1, training=True)
        mixed = (shares @ value).transpose(1, 2).reshape(batch, length, width)
        x = self.norms[0](functional.dropout(self.out(mixed), 0.1, training=True) + x)
        wide = self.narrow(functional.gelu(self.widen(x)))
        return self.norms[1](functional.dropout(wide, 0.1, training=True) + x)


class LoopedAdam:
    """BertAdam: updates the parameters in a loop; clips each gradient by its own norm."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params
        self.state: dict[nn.Parameter, dict[str, torch.Tensor]] = defaultdict(dict)

    def step(self) -> None:
        """Update all parameters."""
        for param in self.params:
            grad, state = param.grad, self.state[param]
            torch.nn.utils.clip_grad_norm_(param, 1.0, foreach=False)
            state["exp_avg"].mul_(0.9).add_(grad, alpha=0.1)
            state["exp_avg_sq"].mul_(0.999).addcmul_(grad, grad, value=0.001)
            update = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-6)
            update += 0.01 * param
            param.add_(-(1e-4 * update))
