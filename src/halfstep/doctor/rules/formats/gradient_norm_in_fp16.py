"""The gradient norm for clipping is computed in fp16 and is infinite."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from torch import finfo, float16

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.record import Evidence, HalfOverflow

LEAST = 2
_GRADIENT = re.compile(r"\bgrad(s|ients?)?\b")


def judge(evidence: Evidence) -> Finding | None:
    """Find norms in fp16, and steps with zero gradients although backward gave nonzero ones."""
    calls = [each for each in evidence.calls if each.result == "fp16" and not each.autocast]
    norms = sorted(calls, key=lambda each: "norm" not in each.name)
    zero = [each for each in evidence.numbers.steps if each.gradient_norm == 0]
    written = evidence.loop.of("write")
    sizes = [each.norm for each in evidence.precision.agreements]
    given = max(sizes, default=0.0)
    if not norms or not written or len(zero) < LEAST or not given > 0:
        return next(map(_overflow, filter(_of_gradients, evidence.overflows)), None)
    return Finding(
        summary=f"in {counted(len(zero), 'step')}, clipping made every gradient 0: the loop "
        "computes the gradient norm in fp16, and the norm overflows",
        facts=(
            (
                f"{norms[0].name}() returned an fp16 result {counted(norms[0].count, 'time')}, "
                "outside autocast"
            ),
            (
                f"in fp32, the largest norm of a single parameter's gradient is {given:.4g}; the "
                f"{_overflowing(sizes)} exceeds the largest fp16 number, 65504"
            ),
        ),
        change=(
            "- torch.nn.utils.clip_grad_norm_(parameters, 1.0)",
            "+ norm = torch.stack([p.grad.norm(dtype=torch.float32) for p in parameters]).norm()",
            "+ torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, norm)",
        ),
        site=written[0][1].site,
    )


def _overflowing(sizes: Sequence[float]) -> str:
    """Return what is above the maximum of fp16, for the norms of the gradients of a step."""
    squares = sum(each**2 for each in sizes)
    if squares**0.5 <= finfo(float16).max < squares:
        return f"sum of the squares of all gradients, {squares:.4g},"
    return "norm over all parameters"


def _of_gradients(overflow: HalfOverflow) -> bool:
    """Return whether a line that overflows computes with gradients."""
    return overflow.of_gradients or (
        overflow.site is not None and _GRADIENT.search(overflow.site.text) is not None
    )


def _overflow(found: HalfOverflow) -> Finding:
    """Return the finding for a norm by hand, whose optimizer may be the program's own."""
    return Finding(
        summary=f"{found.name} of gradients is computed in {found.format} and is not finite; in "
        f"fp32 it is {found.exact:.4g}. A norm that is inf makes the factor for clipping, and so "
        "every gradient, 0",
        facts=(f"this happened {counted(found.count, 'time')}",),
        change=(
            "+ # compute with each.grad.float() here, or divide by the loss scale in fp32 before;",
            "+ norm = torch.stack([each.grad.float().norm() for each in parameters]).norm()",
        ),
        site=found.site,
    )


RULE = Rule(
    code="GRADIENT_NORM_IN_FP16",
    name="the norm of gradients in fp16",
    rows=(47,),
    citations=("NVIDIA-NeMo/Automodel#825",),
    needs=frozenset({"calls", "numbers", "loop", "overflows", "precision"}),
    judge=judge,
    explains=(
        "CLIPPED_BY_INFINITE_NORM",
        "EVALUATION_LOSS_IN_HALF",
        "GRADIENTS_VANISH",
        "NO_GRADIENTS",
    ),
)
