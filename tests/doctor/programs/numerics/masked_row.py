"""A mask that hides every position from one query."""

import torch
from torch.nn import functional

from doctor.loops import classifier, plain_steps
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


class Logarithm(Added):
    """Attention with the logarithm of a mask of ones."""

    def masked(self, scores: torch.Tensor) -> torch.Tensor:
        return scores + (~self.mask).float().log()


def broken_with_the_logarithm_of_a_mask() -> None:
    train_with_added_mask(Logarithm)


def healthy_logarithm_of_a_mask() -> None:
    places = torch.arange(6)
    mask = places[None, :] > places[:, None]
    plain_steps(Logarithm(1.0, scale_first=True, mask=mask), functional.cross_entropy)


class ByHand(Added):
    """Attention whose softmax is written out, with the maximum of each row or without."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)


class ByColumns(Added):
    """Attention whose softmax is written out over a dimension that is not the last one."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.transpose(-2, -1)
        return (scores - scores.logsumexp(-2, keepdim=True)).exp().transpose(-2, -1)


def broken_in_a_softmax_by_hand() -> None:
    train_with_added_mask(ByHand)


def broken_in_a_softmax_by_hand_over_another_dimension() -> None:
    train_with_added_mask(ByColumns)


def of_sums(*, first: int) -> None:
    """Train on the logarithm of a sum over the classes that a mask leaves."""
    places = torch.arange(3)

    def loss_function(outputs, labels):
        hidden = places[None, :] >= labels[:, None] + first
        left = outputs + torch.zeros(hidden.shape).masked_fill(hidden, float("-inf"))
        return (left.logsumexp(1).clamp(min=-9) - outputs[:, 0]).mean()

    plain_steps(classifier(), loss_function)


def broken_in_the_gradient_of_a_sum() -> None:
    of_sums(first=0)


def healthy_sums_over_one_class_or_more() -> None:
    of_sums(first=1)


class ByHandWithoutRows(Added):
    """As above, where each row that the mask hides is replaced before the difference."""

    def weights(self, scores: torch.Tensor) -> torch.Tensor:
        empty = (scores == -torch.inf).all(-1, keepdim=True)
        scores = scores.masked_fill(empty, 0)
        return (scores - scores.logsumexp(-1, keepdim=True)).exp()


def healthy_softmax_by_hand_without_empty_rows() -> None:
    train_with_added_mask(ByHandWithoutRows)
