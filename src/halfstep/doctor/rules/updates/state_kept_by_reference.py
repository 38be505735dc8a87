"""A state is kept without a copy, so that it has changed with the weights when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.remedies import copied_state
from halfstep.doctor.signals.program.own_states import OwnState, OwnStates
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a load that gives a module the weights that it has, after steps have changed them."""
    for each in evidence.of(OwnStates).loads:
        if not each.module:
            return _of_a_copy(each)
        where = f" at {each.site}" if each.site else ""
        return Finding(
            summary=f"load_state_dict{where} gives {each.module} its own weights: state_dict() "
            "returns references, and the state was kept without a copy, so it has changed "
            + (f"in the {counted(each.steps, 'step')} since then" if each.steps else "since then"),
            facts=(f"{counted(each.count, 'load')} of such a state changed nothing",),
            change=copied_state(each.kept_by),
            confidence=LIKELY,
            site=each.kept or each.site,
        )
    return None


def _of_a_copy(state: OwnState) -> Finding:
    """Return the finding on a line that copies each parameter by itself."""
    return Finding(
        summary="this line copies parameters from their own memory, so it changes nothing: "
        "parameters(), detach() and .data return references, and what it copies was kept "
        "without a copy",
        facts=(f"{counted(state.count, 'such copy', 'such copies')} of each parameter",),
        change=(
            "- best = {name: each.detach() for name, each in model.named_parameters()}",
            "+ best = {name: each.detach().clone() for name, each in model.named_parameters()}",
        ),
        confidence=LIKELY,
        site=state.site,
    )


RULE = Rule(
    code="STATE_KEPT_BY_REFERENCE",
    name="a state that is kept without a copy",
    rows=(29,),
    citations=("pytorch/tutorials#188", "WenjieDu/PyPOTS#667"),
    needs=frozenset({"own_states"}),
    judge=judge,
    harmless=True,
)
