"""A small attention layer, for the programs with errors inside attention."""

import torch
from torch import nn


class Attention(nn.Module):
    """Single-head attention over 6 positions of one feature each, lifted to 16.

    Args:
        sharpness: Factor of queries and keys.
        scale_first: Whether the query is scaled before the product.
        mask: Positions to mask, of a shape that broadcasts with scores of shape (8, 6, 6).
    """

    def __init__(self, sharpness: float, *, scale_first: bool, mask=None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lift = nn.Linear(1, 16)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)
        self.sharpness, self.scale_first, self.mask = sharpness, scale_first, mask

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.lift(images[:, :, None])
        query = self.query(features) * self.sharpness
        key = self.key(features) * self.sharpness
        scale = 1 / (16 * self.sharpness**2)
        if self.scale_first:
            scores = (query * scale) @ key.transpose(1, 2)
        else:
            scores = (query @ key.transpose(1, 2)) * scale
        if self.mask is not None:
            scores = self.masked(scores)
        return self.head((self.weights(scores) @ features).mean(1))

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the weights of the positions."""
        return scores.softmax(-1)

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        """Mask positions of the scores."""
        return scores.masked_fill(self.mask, float("-inf"))
