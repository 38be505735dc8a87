"""A model runs in another thread, where the loop's autocast is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import torch_dtype
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find model calls without autocast in another thread while the loop is under autocast."""
    for call in evidence.elsewhere:
        if call.autocast or not call.loop_autocast:
            continue
        return Finding(
            summary=f"the loop is under autocast to {call.loop_autocast}, but {call.kind} runs "
            "without autocast in another thread: autocast applies to one thread only, so the "
            "model computes in the formats of its parameters",
            facts=(f"{counted(call.count, 'call')} in threads other than the loop's",),
            change=(
                "  def work(model, inputs):",
                f"+     with torch.autocast(device_type, dtype={torch_dtype(call.loop_autocast)}):",
                "          return model(inputs)",
            ),
            site=call.site,
        )
    return None


RULE = Rule(
    code="AUTOCAST_IN_OTHER_THREAD",
    name="autocast does not reach another thread",
    rows=(41,),
    citations=("catalyst-team/catalyst#992", "pytorch/pytorch#36466"),
    needs=frozenset({"elsewhere"}),
    judge=judge,
)
