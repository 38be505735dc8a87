"""Small language models, and texts of random tokens."""

import torch
from torch import nn
from torch.nn import functional

TOKENS, SAMPLES, LENGTH = 13, 4, 10


class Language(nn.Module):
    """An embedding, a function of positions, and logits of tokens.

    Args:
        mix: Returns the results of a layer for features of shape (samples, positions, 8).
        layers: Its layers.
    """

    def __init__(self, mix, *layers) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)
        self.layers, self.mix = nn.ModuleList(layers), mix

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embedding(tokens), *self.layers))


def texts(seed: int = 1) -> torch.Tensor:
    """Tokens of shape (steps, samples, positions + 2)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(TOKENS, (4, SAMPLES, LENGTH + 2), generator=generator)


def next_token(outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), tokens.flatten())


def train(model: nn.Module, shift: int = 1, loss_of=next_token) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for tokens in texts():
        optimizer.zero_grad()
        targets = tokens[:, shift : LENGTH + shift].contiguous()
        loss_of(model(tokens[:, :LENGTH]), targets).backward()
        optimizer.step()


def attention(features: torch.Tensor, layer: nn.Linear, *, causal: bool) -> torch.Tensor:
    queries, keys, values = layer(features).chunk(3, -1)
    scores = queries @ keys.transpose(1, 2) / 8**0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return features + scores.softmax(-1) @ values
