"""Outputs of shape (N, 1) and targets of shape (N,), or the reverse, broadcast to (N, N).

The loss then compares each output with the target of every sample, so its minimum is at outputs
that are all equal to the mean of the targets.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


_SUBTRACTIONS = {"sub", "rsub", "subtract"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a difference of outputs and targets of unequal shapes with equally many elements."""
    for call in evidence.calls:
        if not call.crossed:
            continue
        first, second, together = call.crossed
        name = "a subtraction" if call.name.strip("_") in _SUBTRACTIONS else call.name
        return Finding(
            summary=f"{name} broadcasts tensors of the shapes {_text(first)} and {_text(second)} "
            f"to {_text(together)}, so that each output is compared with "
            "the targets of all samples, and the model learns only the mean of the targets",
            facts=(f"each tensor has {math.prod(first)} elements; one depends on no parameters",),
            change=("+ targets = targets.view_as(outputs)  # before the loss",),
            confidence=LIKELY,
            site=call.site,
        )
    return None


def _text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


RULE = Rule(
    code="TARGETS_BROADCAST",
    name="targets that broadcast against the outputs",
    rows=(35,),
    citations=("pytorch/pytorch#16045", "pytorch/pytorch#19699"),
    needs=frozenset({"calls"}),
    judge=judge,
    harmless=True,
)
