"""The last noise level of a diffusion model's training is far from noise alone.

The forward process takes the factor of one step in place of the product of all steps so far, or the
number of steps was reduced without a stronger schedule. Sampling begins with noise alone, which the
network has never seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_WEAK = 0.7
"""Half of the variance of an input is then noise."""


def judge(evidence: Evidence) -> Finding | None:
    """Find noise that is to be predicted, and that the inputs hardly hold."""
    for found in evidence.of(Influence).noise:
        if found.correlation > _WEAK:
            continue
        return Finding(
            summary="the network predicts the noise in its inputs, but even at the last noise "
            f"levels these are mostly data: only {found.correlation**2:.0%} of their variance is "
            "noise, and sampling begins with nothing else",
            facts=(
                f"correlation of inputs and noise: {found.correlation:.2f}",
                f"measured at the last quarter of the levels of a batch, up to {found.last:g}",
            ),
            change=(
                "+ # take the product of all steps so far: bar = torch.cumprod(1 - beta, 0)[t],",
                "+ # bar.sqrt() * x + (1 - bar).sqrt() * noise; of few steps, each needs a larger",
                "+ # beta, so that bar ends near 0",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="NOISE_TOO_WEAK",
    name="a diffusion model that never sees its last noise level",
    rows=(11,),
    citations=("arxiv.org/abs/2305.08891",),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
