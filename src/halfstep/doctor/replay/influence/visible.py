"""Losses of masked tokens that count the visible tokens, and leave the masked ones out.

A masked language model gets tokens of which some are replaced by one mask token, and is to tell
which ones. If the targets at these places are left out of the loss, the model only copies what it
sees. The program itself must have written the mask token into its input: other tokens that a loss
leaves out, such as padding, separators or unknown words, mark no tokens that could be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import VisibleTargets
from halfstep.doctor.replay.influence.losses import counted_in, losses, picked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_FEWEST = 8  # targets, and masked tokens
_MASKED = 0.5  # of the tokens that a loss leaves out
_MOST = 0.5  # of the tokens


def visible_targets(
    forwards: Forwards, written: Callable[[int], list[tuple[int, torch.Tensor | None]]]
) -> Iterator[VisibleTargets]:
    """Yield the losses of a step that leave out just the masked tokens.

    Args:
        forwards: Runs the step.
        written: Returns the numbers that the loop has written into tensors of so many elements,
            each with the tensor before, if it is known.
    """
    operators = forwards.base
    every = [*(each for each in losses(operators) if each.is_of_classes), *picked(operators)]
    for tokens in forwards.inputs.values():
        if tokens.is_floating_point() or tokens.is_complex() or tokens.ndim != 2:
            continue
        for mask, before in written(tokens.numel()):
            masked = tokens == mask
            if before is not None and before.shape == tokens.shape and _is_one(before[masked]):
                continue  # It stands for missing data, and no other token was there.
            count = int(masked.sum())
            if not (_FEWEST <= count <= _MOST * tokens.numel()) or _is_at_ends(masked):
                continue
            found = [(each, counted_in(each, forwards.ends)) for each in every]
            copies = [pair for pair in found if _copies(*pair, tokens, masked, mask)]
            others = [pair for pair in found if pair not in copies]
            if copies and not any(_tells(*pair, masked, count) for pair in others):
                loss, counted = copies[0]
                yield VisibleTargets(mask, count, int(counted.sum()), loss.site)
                return


def _is_one(values: torch.Tensor) -> bool:
    return bool(values.numel()) and bool((values == values[0]).all())


def _is_at_ends(masked: torch.Tensor) -> bool:
    """Return whether masked tokens only fill the ends of rows, as padding does."""
    return any(
        bool((each.long().diff(dim=1) >= 0).all()) or bool((each.long().diff(dim=1) <= 0).all())
        for each in (masked, masked.T)
    )


def _copies(
    loss: Loss, counts: torch.Tensor, tokens: torch.Tensor, masked: torch.Tensor, mask: int
) -> bool:
    """Return whether all targets that count are the visible tokens at the same places."""
    targets, counted = loss.targets.reshape(-1), counts.reshape(-1)
    if int(counted.sum()) < _FEWEST or len(targets[counted].unique()) < 2:
        return False
    padding = _padding(tokens) & ~masked
    for mine, its, ends in ((tokens, masked, padding), (tokens.T, masked.T, padding.T)):
        given, hidden = mine.reshape(-1), its.reshape(-1)
        if targets.numel() == int((~hidden).sum()):
            if bool(counted.all()) and bool((targets == given[~hidden]).all()):
                return True
        elif targets.numel() == given.numel():
            left = ~counted & ~ends.reshape(-1)
            is_masked = int((hidden & left).sum()) >= _MASKED * int(left.sum())
            is_hidden = bool((hidden <= left).all()) and not bool((targets[hidden] == mask).any())
            if is_masked and is_hidden and bool((targets == given)[counted].all()):
                return True
    return False


def _padding(tokens: torch.Tensor) -> torch.Tensor:
    """Return which places are in a run of equal tokens that ends a row."""
    same = (tokens == tokens[:, -1:]).flip(1).long().cumprod(1).flip(1).bool()
    return same & (same.sum(1, keepdim=True) > 1)


def _tells(loss: Loss, counts: torch.Tensor, masked: torch.Tensor, count: int) -> bool:
    """Return whether another loss may be that of the masked tokens."""
    targets = loss.targets.numel()
    if targets == masked.numel():
        counted = counts.reshape(-1)
        return any(bool((counted & each.reshape(-1)).any()) for each in (masked, masked.T))
    return count <= targets < masked.numel()
