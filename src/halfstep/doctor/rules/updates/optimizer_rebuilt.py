"""A loop builds the optimizer anew before its momentum has built up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.rebuilt import RebuiltOptimizers
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 4


def judge(evidence: Evidence) -> Finding | None:
    """Find optimizers that are replaced, over the same parameters, after a few steps each."""
    for line in evidence.of(RebuiltOptimizers).lines:
        if line.continued < _OFTEN or line.steps >= line.memory * line.continued:
            continue
        text = line.site.text if line.site else "optimizer = ..."
        return Finding(
            summary=f"{line.kind} is built anew over the same parameters again and again, so its "
            f"momentum, which averages over about {line.memory:.0f} steps, is lost before it has "
            "built up",
            facts=(
                (
                    f"this line has built it {line.built} times; {line.continued} times, the "
                    "parameters were those that the optimizer before had left"
                ),
                f"each one made {line.steps / line.continued:.3g} steps on average",
            ),
            change=(
                f"- {text}",
                "+ # once, before the loop, for all of its epochs:",
                f"+ {text}",
            )
            if line.loop and line.loop != line.site
            else (
                f"  {text}",
                "+ # build it once, before the first step, not in each call of this function;",
                "+ # to change its rate, write group['lr'] for each group in its param_groups",
            ),
            confidence=LIKELY,
            site=line.site,
        )
    return None


RULE = Rule(
    code="OPTIMIZER_REBUILT",
    name="an optimizer that is built anew again and again",
    rows=(58,),
    citations=("euancrabtree/Lipreading-PyTorch#7", "alan-turing-institute/deepsensor#47"),
    needs=frozenset({"rebuilt"}),
    judge=judge,
    harmless=True,
)
