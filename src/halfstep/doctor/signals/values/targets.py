"""Measures the targets of losses that need probabilities as targets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record import TargetRange
from halfstep.doctor.record.sites import site
from halfstep.doctor.tensors.local import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.doctor.tape.tape import Entry

_LOSSES = {
    *("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"),
    *("multilabel_soft_margin_loss", "MultiLabelSoftMarginLoss"),
}


def target_ranges(entries: Iterable[Entry]) -> Iterator[TargetRange]:
    """Yield the range of each tensor of targets in a step, if all of its elements count.

    Targets with weights or without a reduction may contain a mark for elements that the loop leaves
    out, and targets that were changed in place since the call are no longer known.

    Args:
        entries: The calls of the step on the tape.
    """
    for entry in entries:
        name = getattr(entry.function, "__name__", type(entry.function).__name__)
        targets = entry.args[1] if len(entry.args) > 1 else entry.kwargs.get("target")
        if name not in _LOSSES or not isinstance(targets, torch.Tensor) or not targets.numel():
            continue
        if _leaves_out(entry) or any(
            given is targets and given._version != version for given, version in entry.given
        ):
            continue
        low, high = (each.item() for each in torch.aminmax(local(targets.detach())))
        if math.isfinite(low) and math.isfinite(high):
            yield TargetRange(name, low, high, site(entry.mark))


def _leaves_out(entry: Entry) -> bool:
    """Return whether the call of a loss can leave out elements, by weights or no reduction."""
    if isinstance(entry.function, torch.nn.Module):
        return entry.function.weight is not None or entry.function.reduction == "none"
    given = {name for name, each in entry.kwargs.items() if each is not None}
    return (
        len(entry.args) > 2
        or bool(given & {"weight", "size_average", "reduce"})
        or entry.kwargs.get("reduction") == "none"
    )
