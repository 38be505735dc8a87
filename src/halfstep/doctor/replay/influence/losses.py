"""The losses of a forward: their operators, predictions and targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.answers import Place
from halfstep.doctor.record.sites import site
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.record.sites import Site
    from halfstep.doctor.replay.influence.forward import Operator

OF_CLASSES = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
_OTHERS = frozenset(
    {
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "huber_loss",
        "mse_loss",
        "smooth_l1_loss",
    }
)
_DIFFERENCES = frozenset({"sub", "rsub"})
_SAME = frozenset({"_to_copy", "alias", "detach", "view"})
_PARTS = _SAME | {"expand", "select", "slice", "squeeze", "t", "transpose", "unsqueeze"}
_UNREDUCED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """A loss of outputs and targets.

    Attributes:
        operator: Its operator.
        maker: Number of the operator that made the predictions.
        predictions: The predictions; of a loss of classes, logarithms of probabilities.
        targets: The targets.
    """

    operator: Operator
    maker: int
    predictions: torch.Tensor
    targets: torch.Tensor

    @property
    def is_of_classes(self) -> bool:
        """Whether the targets are numbers of classes."""
        return self.operator.name in OF_CLASSES

    @property
    def ignored(self) -> int | None:
        """The target that does not count; None for none."""
        return int(self.operator.args[4]) if self.is_of_classes else None

    @property
    def counted(self) -> torch.Tensor:
        """Which targets count."""
        ignored = self.ignored
        return torch.ones_like(self.targets).bool() if ignored is None else self.targets.ne(ignored)

    @property
    def is_plain(self) -> bool:
        """Whether all other targets count the same."""
        args = self.operator.args
        return self.is_of_classes and args[2] is None and args[3] != _UNREDUCED

    @property
    def site(self) -> Site | None:
        """The user's line."""
        return site(self.operator.caller.user_line)


def losses(operators: Sequence[Operator]) -> Iterator[Loss]:
    """Yield the losses of a forward."""
    for each in operators:
        at = 0
        if each.name in _DIFFERENCES and _is_of_targets(operators, each):
            at = each.needed.index(True)
        elif each.name not in OF_CLASSES | _OTHERS:
            continue
        if each.makers[at] != OUTSIDE:
            given = each.given[at].detach(), each.given[1 - at].detach()
            yield Loss(each, each.makers[at], *given)


def overlaps(operators: Sequence[Operator]) -> Iterator[Loss]:
    """Yield products of probabilities and masks of 0 and 1, as those in a Dice loss."""
    for each in operators:
        if each.name != "mul" or not _is_of_targets(operators, each):
            continue
        at = each.needed.index(True)
        predictions, targets = each.given[at].detach(), each.given[1 - at].detach()
        is_mask = bool(((targets == 0) | (targets == 1)).all())
        is_share = bool(((predictions >= 0) & (predictions <= 1)).all())
        if each.makers[at] != OUTSIDE and is_mask and is_share:
            yield Loss(each, each.makers[at], predictions, targets)


def picked(operators: Sequence[Operator]) -> Iterator[Loss]:
    """Yield losses of classes by hand: logarithms of probabilities, picked by the targets."""
    for each in operators:
        is_gather = each.name == "gather" and each.given[1].shape[int(each.args[1])] == 1
        is_index = each.name == "index" and len(each.given) == 3 and each.given[0].ndim == 2
        if not (is_gather or is_index) or not each.needed[0]:
            continue
        number = each.makers[0]
        while number != OUTSIDE and operators[number].name in _SAME:
            number = operators[number].makers[0]
        if number != OUTSIDE and operators[number].name == "_log_softmax":
            targets = each.given[1].squeeze(int(each.args[1])) if is_gather else each.given[2]
            yield Loss(each, each.makers[0], each.given[0].detach(), targets)


def counted_in(loss: Loss, ends: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return which targets count in the losses at the end of a forward, as far as it is known."""
    found = None if loss.is_plain else counting(loss, ends)
    return loss.counted if found is None else found


def counting(loss: Loss, ends: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return which targets count in the losses at the end of a forward, by their gradients.

    Args:
        loss: The loss.
        ends: The losses on which the program calls backward.

    Returns:
        A mask in the shape of the targets; None if it is unknown.
    """
    at = loss.operator.needed.index(True)
    predictions, total = loss.operator.given[at], [each.sum() for each in ends]
    if not (predictions.requires_grad and total and all(each.requires_grad for each in total)):
        return None
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(total, predictions, retain_graph=True, allow_unused=True)
    if gradient is None:
        return None
    counts = gradient != 0
    if loss.operator.name == "gather":
        return counts.any(int(loss.operator.args[1]))
    is_by_class = loss.is_of_classes and counts.ndim == loss.targets.ndim + 1
    if loss.operator.name == "index" or is_by_class:
        return counts.any(1)
    return counts if counts.shape == loss.targets.shape else None


def _is_of_targets(operators: Sequence[Operator], operator: Operator) -> bool:
    """Return whether a difference, or a product, is one of predictions and targets."""
    if (
        len(operator.given) != 2
        or sum(operator.needed) != 1
        or operator.given[0].shape != operator.given[1].shape
    ):
        return False
    maker = operator.makers[operator.needed.index(False)]
    while maker != OUTSIDE and operators[maker].name in _PARTS:
        maker = operators[maker].makers[0]
    return maker == OUTSIDE


def place(operator: Operator) -> Place:
    """Return an operator as the record holds it."""
    caller = operator.caller
    shape = tuple(operator.values[0].shape) if operator.values else ()
    return Place(operator.name, caller.module, caller.module_kind, shape, site(caller.user_line))


def mask_of(
    changed: Sequence[Sequence[torch.Tensor]], number: int, like: torch.Tensor
) -> torch.Tensor | None:
    """Return where the result of an operator changed, in the shape of a tensor that it made."""
    return next((each for each in changed[number] if each.shape == like.shape), None)
