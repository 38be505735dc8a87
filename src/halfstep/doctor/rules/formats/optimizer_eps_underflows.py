"""The optimizer's eps is zero in the format of its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.remedies import with_eps
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.optim.eps import LARGE_ENOUGH, zero_eps
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find an eps that rounds to 0 in the format of the optimizer's parameters."""
    for optimizer in evidence.static.optimizers:
        for form in optimizer.formats if optimizer.steps else ():
            found = zero_eps(optimizer.settings, form)
            if found is None:
                continue
            broken = [each for model in evidence.static.models for each in model.bad_parameters]
            facts = [
                f"{optimizer.kind} holds {counted(optimizer.formats[form], f'{form} parameter')}"
            ]
            if broken:
                facts.append(f"not finite: {', '.join(broken[:3])}")
            return Finding(
                summary=f"{found}: where a gradient is 0 or its square underflows, the update is "
                "0/0 or x/0",
                facts=tuple(facts),
                change=(
                    "+ # keep the parameters in fp32 and use autocast; or",
                    *with_eps(optimizer, LARGE_ENOUGH),
                ),
                confidence=CERTAIN if broken else LIKELY,
                site=optimizer.site,
            )
    return None


RULE = Rule(
    code="OPTIMIZER_EPS_UNDERFLOWS",
    name="the optimizer's eps is zero in half precision",
    rows=(27,),
    citations=("pytorch/pytorch#8860", "openai/CLIP#40"),
    needs=frozenset({"static"}),
    judge=judge,
    explains=("UPDATE_NOT_FINITE",),
)
