"""The optimizer's second moment is in a format whose rounding prevents it from decreasing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import HALVES
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find fp32 parameters whose second moment is in a format that rounds beta2 to 1."""
    for optimizer in evidence.static.optimizers:
        beta = optimizer.settings.get("beta2")
        if (
            not isinstance(beta, float)
            or optimizer.steps == 0
            or set(optimizer.formats) != {"fp32"}
            or optimizer.settings.get("stochastic_rounding")  # then the moment can decrease
        ):
            continue
        for state, form in _second_moments(optimizer.state_formats).items():
            if form not in HALVES or not 0 < 1 - beta < FORMATS[form].eps / 4:
                continue
            return Finding(
                summary=f"{optimizer.kind} keeps its state {state!r} in {form}, in which the "
                f"factor {beta:g} rounds to 1: the average never falls, so updates stay small "
                "after a large gradient",
                facts=(
                    (
                        f"1 - {beta:g} is less than half the distance from 1 to the next smaller "
                        f"{form} number"
                    ),
                    "the parameters themselves are fp32",
                ),
                change=(
                    "- state = torch.zeros_like(parameter, dtype=torch.bfloat16)",
                    "+ state = torch.zeros_like(parameter)",
                ),
                confidence=LIKELY,
            )
    return None


def _second_moments(formats: Mapping[str, str]) -> Mapping[str, str]:
    """Return the states with "sq" in their names: averages of squares. Without any, return all."""
    return {name: form for name, form in formats.items() if "sq" in name} or formats


RULE = Rule(
    code="OPTIMIZER_STATE_IN_HALF",
    name="an optimizer's moments in half precision",
    rows=(28,),
    citations=("pytorch/torchtune#2254",),
    needs=frozenset({"static"}),
    judge=judge,
)
