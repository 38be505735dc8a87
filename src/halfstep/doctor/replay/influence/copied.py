"""Regressions whose targets are among what the layers are given, at the same places.

A network that is given its targets learns to copy them. An autoencoder is meant to: it has nothing
but its targets, and passes them through a bottleneck. So targets count that stand beside other
inputs, if every operator on the way to the predictions has room for them, and if changing one
number of a sample changes the prediction of this number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record.answers import Copied
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import OF_CLASSES, losses, mask_of, place
from halfstep.doctor.replay.influence.paths import ancestors, draws, is_only_way
from halfstep.doctor.replay.memory import storage_key
from halfstep.doctor.tensors.nesting import exchange
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_FEWEST = 16  # targets
_COLUMNS = 1024
_ALIKE = 0.9
"""The share of the positions that must be inputs: the first one of a window may be another."""
_MOVED = 0.9
_HIDING = frozenset({"bernoulli", "bernoulli_", "dropout", "native_dropout"})


@dataclass(frozen=True, slots=True, eq=False)
class _Match:
    """An operator that is given the targets of a loss.

    Attributes:
        loss: The loss.
        operator: The operator.
        at: Which of its tensors holds them.
        where: Their places in it, by their numbers.
    """

    loss: Loss
    operator: Operator
    at: int
    where: torch.Tensor


def copied_targets(forwards: Forwards) -> Iterator[Copied]:
    """Yield the regression of a step whose targets are among the inputs."""
    match = _match(forwards.base)
    # What a dropout hides is given in evaluation mode only.
    if match is None or _match(forwards.in_training()) is None:
        return
    changed, moved = _moved(forwards, match)
    if changed and moved >= _MOVED * changed:
        loss = match.loss
        yield Copied(loss.targets.numel(), changed, moved, place(match.operator), loss.site)


def _match(operators: list[Operator]) -> _Match | None:
    """Return the operator that is given the targets of the only regression of a forward."""
    found = [*losses(operators)]
    # Of several terms, one may hold the model to a part of its inputs.
    if len(found) != 1 or not _compares(found[0]):
        return None
    (loss,) = found
    above = ancestors(operators, loss.maker)
    for number in sorted(above):
        operator = operators[number]
        for at, given in enumerate(operator.given):
            if operator.needed[at] or not given.is_floating_point():
                continue
            where = _where(given.detach(), loss.targets)
            if where is not None:
                match = _Match(loss, operator, at, where)
                return match if _can_copy(operators, above, match) else None
    return None


def _compares(loss: Loss) -> bool:
    targets = loss.targets
    return (
        loss.operator.name not in OF_CLASSES
        and targets.is_floating_point()
        and targets.shape == loss.predictions.shape
        and targets.numel() >= _FEWEST
        and 1 < len(targets) < targets.numel() + 1
        and len(targets.unique()) > targets.numel() // 2
    )


def _where(given: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    """Return the places of the targets in a tensor, by their numbers; None if it lacks them."""
    count, samples = targets.numel(), len(targets)
    if given.ndim == 0 or len(given) != samples or given.numel() % count:
        return _where_in_rows(given, targets)
    columns = given.reshape(count, -1)
    if columns.shape[1] > _COLUMNS:
        return None
    alike = columns == targets.reshape(-1, 1)
    best = int(alike.sum(0).argmax())
    if _are_alike(alike[:, best].reshape(samples, -1)):
        return torch.arange(count, device=given.device) * columns.shape[1] + best
    return _where_in_rows(given, targets)


def _where_in_rows(given: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    """Return the places of the targets of each sample, which follow each other in its row."""
    samples = len(targets)
    rows = targets.reshape(samples, -1)
    if given.ndim != 2 or len(given) != samples or given.shape[1] <= rows.shape[1]:
        return None
    for first in (given == rows[:, :1]).all(0).nonzero()[:, 0].tolist():
        part = given[:, first : first + rows.shape[1]]
        if part.shape == rows.shape and _are_alike(part == rows):
            places = torch.arange(given.numel(), device=given.device).reshape(given.shape)
            return places[:, first : first + rows.shape[1]].reshape(-1)
    return None


def _are_alike(same: torch.Tensor) -> bool:
    """Return whether inputs are the targets of all samples, but at a few positions of none.

    A mask hides other positions of each sample.
    """
    return float(same.all(0).float().mean()) >= _ALIKE


def _can_copy(operators: Sequence[Operator], above: set[int], match: _Match) -> bool:
    """Return whether samples have other inputs, and no operator on the way has less room."""
    if any(draws(operators[each]) or operators[each].name in _HIDING for each in above):
        return False  # What hides the inputs is a part of the model.
    operator, loss = match.operator, match.loss
    given, targets = operator.given[match.at], loss.targets
    source = storage_key(given)
    below = {operator.number}
    # What the targets themselves are computed from, as by a cast, is no other input.
    maker = operator.makers[match.at]
    origins = ancestors(operators, maker) if maker != OUTSIDE else set()
    # A part of an input may be picked as the target on purpose, to be told from the others.
    beside = given.numel() > targets.numel() and storage_key(targets) != source
    for number in sorted(above):
        each = operators[number]
        # What was detached passes no gradients on.
        reached = any(
            maker in below and (needed or not any(operators[maker].needed))
            for maker, needed in zip(each.makers, each.needed, strict=True)
        )
        if number == operator.number or reached:
            below.add(number)
        for tensor, maker, needed in zip(each.given, each.makers, each.needed, strict=True):
            is_other = not needed and storage_key(tensor) != source and number not in origins
            if is_other and maker == OUTSIDE and tensor.ndim and len(tensor) == len(targets):
                beside = beside or bool((tensor != tensor[:1]).any())
    narrow = (
        number
        for number in below - {operator.number}
        if operators[number].values and operators[number].values[0].numel() < targets.numel()
    )
    if not beside or loss.maker not in below:
        return False
    return not any(is_only_way(operators, loss.maker, each, {source}) for each in narrow)


def _moved(forwards: Forwards, match: _Match) -> tuple[int, int]:
    """Return of how many samples one input was changed, and how often its prediction changed."""
    loss, operator, at, where = match.loss, match.operator, match.at, match.where
    samples, targets = len(loss.targets), loss.targets.reshape(-1)
    given = operator.given[at].detach()
    width = len(targets) // samples
    rows = torch.arange(samples, device=where.device)
    chosen = rows * width + rows * 7 % width
    chosen = chosen[given.reshape(-1)[where[chosen]] == targets[chosen]]

    def others(args: tuple[Any, ...]) -> tuple[Any, ...]:
        left = iter(range(len(operator.given)))

        def other(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor) or next(left, None) != at:
                return tensor
            copy = tensor.detach().clone().reshape(-1)
            copy[where[chosen]] = copy[where[chosen.roll(1)]]
            return copy.reshape(given.shape)

        changed = exchange(args, other)
        assert isinstance(changed, tuple)
        return changed

    changed = forwards.changed_at((operator.number, others))
    mask = None if changed is None else mask_of(changed, loss.maker, loss.predictions)
    return (0, 0) if mask is None else (len(chosen), int(mask.reshape(-1)[chosen].sum()))
