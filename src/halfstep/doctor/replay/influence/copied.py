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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_FEWEST = 16  # targets
_COLUMNS = 1024
_ALIKE = 0.9
"""The share of the targets that must be inputs: the first one of a window may be another."""
_MOVED = 0.9


def copied_targets(forwards: Forwards) -> Iterator[Copied]:
    """Yield the regression of a step whose targets are among the inputs."""
    operators = forwards.base
    if not any(map(_compares, losses(operators))):  # Some models predict in evaluation only.
        operators = forwards.in_training()
    found = [each for each in losses(operators) if _compares(each)]
    if len(found) != 1:  # Of several terms, one may hold the model to a part of its inputs.
        return
    (loss,) = found
    targets = loss.targets.detach()
    above = ancestors(operators, loss.maker)
    for number in sorted(above):
        operator = operators[number]
        for at, given in enumerate(operator.given):
            if operator.needed[at] or not given.is_floating_point():
                continue
            where = _where(given.detach(), targets)
            if where is None:
                continue
            if _can_copy(operators, above, operator, at, loss):
                changed, moved = _moved(forwards, operators, operator, at, where, loss)
                if changed and moved >= _MOVED * changed:
                    yield Copied(targets.numel(), changed, moved, place(operator), loss.site)
            return


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
    alike = (columns == targets.reshape(-1, 1)).float().mean(0)
    best = int(alike.argmax())
    if float(alike[best]) >= _ALIKE:
        return torch.arange(count, device=given.device) * columns.shape[1] + best
    return _where_in_rows(given, targets)


def _where_in_rows(given: torch.Tensor, targets: torch.Tensor) -> torch.Tensor | None:
    """Return the places of the targets of each sample, which follow each other in its row."""
    samples = len(targets)
    rows = targets.reshape(samples, -1)
    if given.ndim != 2 or len(given) != samples or given.shape[1] <= rows.shape[1]:
        return None
    for first in (given == rows[:, :1]).float().mean(0).ge(_ALIKE).nonzero()[:, 0].tolist():
        part = given[:, first : first + rows.shape[1]]
        if part.shape == rows.shape and float((part == rows).float().mean()) >= _ALIKE:
            places = torch.arange(given.numel(), device=given.device).reshape(given.shape)
            return places[:, first : first + rows.shape[1]].reshape(-1)
    return None


def _can_copy(
    operators: Sequence[Operator], above: set[int], operator: Operator, at: int, loss: Loss
) -> bool:
    """Return whether samples have other inputs, and no operator on the way has less room."""
    given, targets = operator.given[at], loss.targets
    source = storage_key(given)
    below = {operator.number} if any(operator.needed) else set()
    beside = given.numel() > targets.numel()
    for number in sorted(above):
        each = operators[number]
        is_below = number == operator.number or bool(below & {*each.makers})
        if is_below:
            below.add(number)
            if draws(each) or any(
                maker != OUTSIDE and draws(operators[maker]) for maker in each.makers
            ):
                return False
        for tensor, maker, needed in zip(each.given, each.makers, each.needed, strict=True):
            is_other = not needed and storage_key(tensor) != source and tensor.ndim > 0
            if is_other and maker == OUTSIDE and len(tensor) == len(targets):
                beside = beside or bool((tensor != tensor[:1]).any())
    narrow = (
        number
        for number in below - {operator.number}
        if operators[number].values and operators[number].values[0].numel() < targets.numel()
    )
    return beside and not any(is_only_way(operators, loss.maker, each, {source}) for each in narrow)


def _moved(
    forwards: Forwards,
    operators: list[Operator],
    operator: Operator,
    at: int,
    where: torch.Tensor,
    loss: Loss,
) -> tuple[int, int]:
    """Return of how many samples one input was changed, and how often its prediction changed."""
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

    changed = forwards.changed_at((operator.number, others), operators)
    mask = None if changed is None else mask_of(changed, loss.maker, loss.predictions)
    return (0, 0) if mask is None else (len(chosen), int(mask.reshape(-1)[chosen].sum()))
