"""The target of temporal difference learning passes gradients on to the network that is trained.

The step then also moves the value of the next state towards that of the present one. Where each
state has one successor, such a loss can vanish, and then the values are right all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_VANISHES = 1e-3  # of the loss at the beginning


def judge(evidence: Evidence) -> Finding | None:
    """Find a discounted value of the trained network in a target, with gradients."""
    numbers = range(len(evidence.static.optimizers))
    courses = [evidence.numbers.course(number) for number in numbers]
    # Which optimizer trains on the target is not known, so all losses must vanish.
    vanished = [course and abs(course[1]) < _VANISHES * abs(course[0]) for course in courses]
    if vanished and all(vanished):
        return None
    for found in evidence.of(Influence).bootstraps:
        line = found.at.site.text if found.at.site else ""
        name, equals, value = (each.strip() for each in line.partition("="))
        is_simple = equals and name.isidentifier() and value.count("(") == value.count(")")
        return Finding(
            summary="the target is a reward plus a discounted value that the trained network "
            "computes, and it passes gradients on: the step also changes the value of the next "
            "state",
            facts=(f"the value is multiplied by {found.discount:g}",),
            change=(f"- {line}", f"+ {name} = ({value}).detach()")
            if is_simple
            else ("+ # compute the target under torch.no_grad(), or detach() it",),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="BOOTSTRAP_NOT_DETACHED",
    name="a target of temporal difference learning that passes gradients on",
    rows=(11,),
    citations=("datawhalechina/easy-rl#117", "AgileRL/AgileRL#63"),
    needs=frozenset({"influence", "numbers", "static"}),
    judge=judge,
    harmless=True,
)
