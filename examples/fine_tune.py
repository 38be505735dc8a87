"""A language model fine-tuned in fp16 in a plain loop, with one part of the model kept in fp32.

The mantissa of fp16 has three more bits than that of bf16. Fine-tuning by reinforcement learning
uses fp16 again, because the probabilities of sampling and of training then differ less. But
checkpoints that were trained in bf16 or fp32 may have activations above 65504, fp16's maximum, as
in the feed-forward networks of T5. The forward pass then overflows at every loss scale. An
exception, which keeps only this part of the model in fp32, prevents the overflow.

This program makes such a checkpoint. It multiplies the hidden features of the feed-forward networks
by 100,000 and divides the weights behind them by the same factor, so in fp32 the function is the
same. The new text has its two most frequent characters swapped. Three recipes learn it:

- `fp32`, the reference;
- `fp16`: no optimizer step is taken, and the engine reports that the loss scale has collapsed;
- `fp16` with the exception: learns like fp32.

    python examples/fine_tune.py
    halfstep doctor examples/fine_tune.py    # names the module
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (torch's own custom)

from halfstep import Engine, LossScaleCollapse

TEXT = "pack my box with five dozen liquor jugs and quickly judge the fox's brown quiz. " * 12
CONTEXT = 24
BATCH = 16
FACTOR = 1e5
RECIPES: dict[str, str | dict[str, Any]] = {
    "fp32": "fp32",
    "fp16": "fp16",
    "fp16, feed-forward in fp32": {"base": "fp16", "exceptions": {"blocks.*.feed_forward": "fp32"}},
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them: a positive factor passes through.

    Args:
        width: Number of input and output features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features of the same shape."""
        return self.down(self.up(x).relu())

    @torch.no_grad()
    def enlarge(self, factor: float) -> None:
        """Make the hidden features larger without changing the function."""
        self.up.weight *= factor
        self.up.bias *= factor
        self.down.weight /= factor


class Block(nn.Module):
    """Causal self-attention and a feed-forward network, each with a norm before it.

    Args:
        width: Number of features.
        heads: Number of attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed_forward = FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return new features, shape (batch, context, width)."""
        batch, context, width = x.shape
        split = self.qkv(self.norms[0](x)).reshape(batch, context, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, context, width))
        return x + self.feed_forward(self.norms[1](x))


class LanguageModel(nn.Module):
    """Predicts the next character.

    Args:
        characters: Number of different characters.
        width: Number of features.
    """

    def __init__(self, characters: int, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(torch.zeros(CONTEXT, width))
        self.blocks = nn.Sequential(Block(width, 2), Block(width, 2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, context, characters)."""
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.position)))


def encoded() -> tuple[torch.Tensor, int]:
    """Return the text as numbers, and the number of different characters."""
    characters = sorted(set(TEXT))
    return torch.tensor([characters.index(each) for each in TEXT]), len(characters)


def batches(tokens: torch.Tensor, count: int, seed: int) -> list[torch.Tensor]:
    """Return windows of the text, shape (batch, context + 1), the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - CONTEXT - 1, (count, BATCH), generator=generator)
    spans = starts[..., None] + torch.arange(CONTEXT + 1)
    return list(tokens[spans].to(DEVICE))


def train(
    model: nn.Module, data: list[torch.Tensor], recipe: str | dict[str, Any], lr: float
) -> list[float]:
    """Train for one pass over the batches and return the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = []
    with Engine(model, optimizer, recipe=recipe, clip_norm=1.0) as engine:
        for tokens in engine.batches(data):
            with engine.autocast():
                logits = engine.model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def checkpoint(steps: int = 80) -> LanguageModel:
    """Return a model that has learnt the text, with hidden features beyond fp16."""
    torch.manual_seed(0)
    tokens, characters = encoded()
    model = LanguageModel(characters).to(DEVICE)
    train(model, batches(tokens, steps, seed=1), "fp32", lr=3e-3)
    for block in model.blocks:
        block.feed_forward.enlarge(FACTOR)
    return model


def swapped(tokens: torch.Tensor) -> torch.Tensor:
    """Return the text with its two most frequent characters swapped."""
    first, second = torch.bincount(tokens).topk(2).indices
    new = tokens.clone()
    new[tokens == first], new[tokens == second] = second, first
    return new


def main(steps: int = 40) -> dict[str, list[float]]:
    """Fine-tune under each recipe, print the first and last loss, and return the losses."""
    start = checkpoint()
    data = batches(swapped(encoded()[0]), steps, seed=2)
    found: dict[str, list[float]] = {}
    for name, recipe in RECIPES.items():
        try:
            found[name] = train(copy.deepcopy(start), data, recipe, lr=1e-3)
        except LossScaleCollapse as collapse:
            found[name] = []
            print(f"{name}: {collapse}\n")
        else:
            print(f"{name}: loss {found[name][0]:.3f} at first, {found[name][-1]:.3f} at last\n")
    return found


if __name__ == "__main__":
    main()
