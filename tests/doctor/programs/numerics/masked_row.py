"""A mask that hides every position from one query."""

import torch
from torch.nn import functional

from doctor.loops import plain_steps
from doctor.programs.attention import Attention

CODE = "FULLY_MASKED_ROW"


def train(*, first: int) -> None:
    places = torch.arange(6)
    mask = places[None, :] >= places[:, None] + first
    plain_steps(Attention(1.0, scale_first=True, mask=mask), functional.cross_entropy)


def broken() -> None:
    train(first=0)


def mended() -> None:
    train(first=1)


class Added(Attention):
    """Attention with a mask of -inf that is added to the scores."""

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        return scores + torch.zeros(6, 6).masked_fill(self.mask, float("-inf"))


class Emptied(Added):
    """As above, with the change that doctor suggests."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        return scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)


def train_with_added_mask(kind: type[Added]) -> None:
    places = torch.arange(6)
    mask = places[None, :] >= places[:, None]
    plain_steps(kind(1.0, scale_first=True, mask=mask), functional.cross_entropy)


def broken_with_an_added_mask() -> None:
    train_with_added_mask(Added)


def healthy_with_weights_of_zero() -> None:
    train_with_added_mask(Emptied)
