"""Losses whose targets are the tokens of an input, shifted: whether the model sees its targets.

In a language model, the target of an output is the token after it. If an output changes with tokens
after it, the model can read its target. The tokens from the middle of the input on are replaced.
A summary of the whole sequence, such as the code of a variational autoencoder, is meant to carry
later tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.record.influence import Shift
from halfstep.doctor.replay.influence.extent import (
    BEYOND,
    UNKNOWN,
    WITHIN,
    OfPositions,
    extents,
    sources,
)
from halfstep.doctor.replay.influence.losses import losses, mask_of, place
from halfstep.doctor.tensors.inexact import is_inexact
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.record.answers import Place
    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_SHIFTS = (1, 0, 2, -1)
_FEWEST = 8  # targets
_SHORTEST = 4  # positions
_UNROLLED = frozenset({"GRU", "LSTM", "RNN"})
"""Layers whose operators work on one position each."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """An input of tokens, and a loss whose targets are these tokens.

    Attributes:
        loss: The loss.
        key: The key of the input.
        tokens: The input, with two dimensions.
        axis: Its dimension of positions.
        length: Number of positions of the loss.
        shift: How many positions after an output its target is.
    """

    loss: Loss
    key: Any
    tokens: torch.Tensor
    axis: int
    length: int
    shift: int

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.tokens.shape[1 - self.axis]

    def by_position(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a tensor with one element per target with the shape (positions, samples)."""
        if self.axis == 0:
            return rows.reshape(self.length, self.samples)
        return rows.reshape(self.samples, self.length).T


def token_losses(forwards: Forwards) -> list[Tokens]:
    """Return the losses of a step whose targets are tokens of its inputs."""
    return [
        found
        for loss in losses(forwards.base)
        if loss.is_of_classes
        for key, each in forwards.inputs.items()
        if _is_tokens(each)
        for found in _matched(loss, key, each)
    ]


def shifts(forwards: Forwards, found: Sequence[Tokens]) -> Iterator[Shift]:
    """Yield for each loss of tokens what its outputs depend on.

    If a loss matches several inputs, and is causal in one of them, the others are meant to be seen.
    """
    for loss in dict.fromkeys(each.loss for each in found):
        seen: list[Shift | None] = []
        for each in sorted(found, key=lambda each: _SHIFTS.index(each.shift)):
            if each.loss is not loss:
                continue
            seen.append(one := _seen(forwards, each))
            if one is not None and one.shift == _SHIFTS[0] and _is_used(one) and not one.early:
                yield one  # No other input changes this.
                break
        else:
            yield from _chosen(seen)


def _is_used(one: Shift) -> bool:
    """Return whether outputs depend on an input: a model may be given the targets of its loss."""
    return one.reach is not None and one.context


def _chosen(seen: Sequence[Shift | None]) -> Iterator[Shift]:
    known = [each for each in seen if each is not None]
    used = [each for each in known if _is_used(each)]
    if not used or len(known) < len(seen):
        return
    shift = min((each.shift for each in used), key=_SHIFTS.index)
    used = [each for each in used if each.shift == shift]
    yield (min if shift > 0 else max)(used, key=lambda each: each.early)


def _is_tokens(tensor: torch.Tensor) -> bool:
    is_whole = not is_inexact(tensor)
    return is_whole and tensor.dtype != torch.bool and tensor.ndim == 2 and min(tensor.shape) > 0


def _matched(loss: Loss, key: Any, tokens: torch.Tensor) -> list[Tokens]:
    """Return how the targets of a loss are an input, if they match in one way only.

    Targets without a shift match in both dimensions.
    """
    matches = []
    for axis in (1, 0):
        positions, samples = tokens.shape[axis], tokens.shape[1 - axis]
        for length in range(positions, max(positions - 3, _SHORTEST - 1), -1):
            if loss.targets.numel() != length * samples:
                continue
            for shift in _SHIFTS:
                one = Tokens(loss, key, tokens, axis, length, shift)
                if _is_match(one):
                    matches.append(one)
    is_one = len(matches) == 1 or not any(each.shift for each in matches)
    return matches if is_one else []


def _is_match(one: Tokens) -> bool:
    targets = one.by_position(one.loss.targets.reshape(-1))
    tokens = one.tokens if one.axis == 0 else one.tokens.T
    first, last = max(0, -one.shift), min(one.length, len(tokens) - one.shift)
    mine, its = targets[first:last], tokens[first + one.shift : last + one.shift]
    counted = one.by_position(one.loss.counted.reshape(-1))[first:last]
    if int(counted.sum()) < _FEWEST or not bool((mine == its)[counted].all()):
        return False
    return len(mine[counted].unique()) > 1


def _seen(forwards: Forwards, one: Tokens) -> Shift | None:
    length = one.tokens.shape[one.axis]
    start = length // 2
    changed = forwards.changed({one.key: _replaced(one.tokens, one.axis, start, length)})
    moved = _moved(one, changed)
    if changed is None or moved is None:
        return None
    counted = one.by_position(one.loss.counted.reshape(-1))
    early, context = int((moved & counted)[:start].sum()), True
    first = next((at for at, row in enumerate(moved) if row.any()), None)
    if one.shift < 1:
        before = forwards.changed({one.key: _replaced(one.tokens, one.axis, 0, start)})
        later = _moved(one, before)
        context = later is not None and bool(later[start:].any())
    return Shift(
        length,
        one.shift,
        start,
        early,
        None if first is None else start - first,
        context,
        _place(forwards, one, changed, start) if early else None,
        one.loss.site,
    )


def _moved(one: Tokens, changed: Sequence[Sequence[torch.Tensor]] | None) -> torch.Tensor | None:
    """Return which outputs have changed, as (positions, samples)."""
    if changed is None:
        return None
    mask = mask_of(changed, one.loss.maker, one.loss.predictions)
    if mask is None:
        return None
    rows = mask.movedim(1, -1).flatten(0, -2) if mask.ndim > 1 else mask[:, None]
    return one.by_position(rows.any(1))


def _place(
    forwards: Forwards, one: Tokens, changed: Sequence[Sequence[torch.Tensor]], start: int
) -> Place | None:
    """Return where a change first reaches earlier positions; None if a summary carries it."""
    if sum(_embeds(each, changed) for each in forwards.base) > 1:  # also seen by an encoder
        return None
    extent = OfPositions(start, one.tokens.shape[one.axis], one.samples)
    known = extents(forwards.base, changed, extent)
    found = sources(forwards.base, known, one.loss.operator.number, frozenset({BEYOND}))
    for operator, given in found:
        if operator.caller.module_kind not in _UNROLLED and (
            WITHIN not in given or UNKNOWN in given
        ):
            return None
    return place(found[0][0]) if found else None


def _embeds(operator: Operator, changed: Sequence[Sequence[torch.Tensor]]) -> bool:
    is_changed = any(bool(each.any()) for each in changed[operator.number])
    return operator.name == "embedding" and is_changed


def _replaced(tokens: torch.Tensor, axis: int, start: int, end: int) -> torch.Tensor:
    """Return tokens of which each between two positions is another one of the input."""
    known, places = tokens.unique(return_inverse=True)
    others = known.roll(1)[places]
    copy = tokens.detach().clone()
    copy.narrow(axis, start, end - start).copy_(others.narrow(axis, start, end - start))
    return copy
