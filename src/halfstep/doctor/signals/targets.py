"""Measures the targets of losses that need probabilities as targets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record import TargetRange
from halfstep.doctor.record.sites import site

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.doctor.tape.tape import Entry

_LOSSES = {"binary_cross_entropy_with_logits", "BCEWithLogitsLoss"}


def target_ranges(entries: Iterable[Entry]) -> Iterator[TargetRange]:
    """Yield the range of each tensor of targets in a step.

    Args:
        entries: The calls of the step on the tape.
    """
    for entry in entries:
        name = getattr(entry.function, "__name__", type(entry.function).__name__)
        targets = entry.args[1] if len(entry.args) > 1 else entry.kwargs.get("target")
        if name in _LOSSES and isinstance(targets, torch.Tensor) and targets.numel():
            low, high = torch.aminmax(targets.detach())
            yield TargetRange(name, low.item(), high.item(), site(entry.mark))
