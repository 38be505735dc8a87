"""The loop divides gradients by the loss scale in fp16, where small ones become 0 again."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.unscaling import HalfUnscaling, HalfUnscalings
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.record import Evidence, Sample

_MOST = 0.3  # of the elements
_SOME = 0.05
_ALL = 0.95
_IN_HOOK = (
    "+ # in the hook that this line registers, leave the gradient multiplied by the loss scale,",
    "+ # and divide it after the cast to fp32: p.grad.float() / scale",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find divisions that turn many elements of fp16 gradients into 0."""
    for line in evidence.of(HalfUnscalings).lines:
        if not line.examined or line.lost < _SOME * line.examined:
            continue
        if line.divisor == inf and _zeros(evidence.samples) < _ALL:
            continue  # Other parameters get gradients: the hook may freeze these.
        share = line.lost / line.examined
        return Finding(
            summary=f"gradients are divided by {_about(line)} while they are in fp16, so "
            f"{share:.0%} of their elements become 0: the loss scale is in vain",
            facts=(
                (
                    f"{counted(line.calls, 'examined division' if line.in_hook else 'division')}; "
                    f"{line.lost} of "
                    f"{counted(line.examined, 'element')} other than 0 became 0 in the examined "
                    "ones"
                ),
                "the smallest number above 0 in fp16 is 6e-08",
            ),
            change=_IN_HOOK
            if line.in_hook
            else (
                f"- {line.site.text if line.site else 'gradient = (p.grad / scale).float()'}",
                "+ # in fp32 first, then divided:",
                "+ gradient = p.grad.float() / scale",
            ),
            confidence=CERTAIN if share >= _MOST and line.divisor < inf else LIKELY,
            site=line.site,
        )
    return None


def _zeros(samples: Sequence[Sample]) -> float:
    """Return the share of zeros in the gradients that steps got, as a mean of the parameters."""
    return sum(each.gradient_zeros for each in samples) / max(1, len(samples))


def _about(line: HalfUnscaling) -> str:
    """Return the divisor; it is measured if a hook divides."""
    if line.divisor == inf:
        return "a large number in a hook"
    return f"about {line.divisor:.1g} in a hook" if line.in_hook else f"{line.divisor:g}"


RULE = Rule(
    code="UNSCALED_IN_HALF",
    name="gradients divided by the loss scale in fp16",
    rows=(51,),
    citations=("arXiv:1710.03740, section 3.2",),
    needs=frozenset({"samples", "unscaling"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "NO_GRADIENTS"),
    harmless=True,
)
