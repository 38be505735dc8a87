"""A parameter contains inf or NaN before the first update: from a checkpoint or the program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence, StepNumbers

_PARAMETER = "parameter "


def judge(evidence: Evidence) -> Finding | None:
    """Find a parameter with inf or NaN in a bad step, which it had before the first update.

    Where a class is never drawn, a bias of -inf does no harm until an optimizer decays it.
    """
    birth = next((each for each in evidence.births if each.culprit and not each.op), None)
    if birth is None or not birth.output.name.startswith(_PARAMETER):
        return None
    name = birth.output.name.removeprefix(_PARAMETER)
    grown = (each for each in evidence.growth.parameters if each.parameter == name)
    was_moved = _has_stepped(evidence, birth)
    if was_moved and all(math.isfinite(each.before) for each in grown):
        return None
    bad = next((each for each in evidence.inputs if each.name == name), None)
    others = [each.name for each in evidence.inputs if each.what == "parameter" and each is not bad]
    count = birth.output.nans + birth.output.infs
    values = "inf or NaN" if was_moved else counted(count, f"{birth.value} value")
    return Finding(
        summary=f"{name} contains {values} before the first update; its shape is "
        f"{[*birth.output.shape]}",
        facts=(
            *((f"the first one is at index {[*bad.index]}",) if bad else ()),
            *((f"also not finite: {', '.join(others[:3])}",) if others else ()),
        ),
        change=(
            f"+ # if {name} is loaded: in an fp16 checkpoint, a weight above 65504 is inf",
            f"+ # if {name} is made with torch.empty: fill it, for example with nn.init.normal_",
            f"+ # if the program writes to {name} before the first step, inspect that line",
        ),
        module=name.rpartition(".")[0],
    )


def _has_stepped(evidence: Evidence, birth: Birth) -> bool:
    if any(
        (each.is_finite if _skips_itself(evidence, each) else not each.skipped)
        and each.iteration < birth.iteration
        for each in evidence.numbers.steps
    ):
        return True
    backwards = len(evidence.loop.of("backward"))  # The loop may update the parameters itself.
    return not evidence.numbers.steps and backwards > bool(evidence.static.optimizers)


def _skips_itself(evidence: Evidence, step: StepNumbers) -> bool:
    """Return whether an optimizer should have skipped a step, and may have applied it."""
    optimizers = evidence.static.optimizers
    is_known = step.skipped and 0 <= step.optimizer < len(optimizers)
    return is_known and optimizers[step.optimizer].skips_itself


RULE = Rule(
    code="PARAMETERS_NOT_FINITE",
    name="parameters with inf or NaN from the start",
    rows=(35,),
    citations=("gordicaleksa/pytorch-GAT#11", "sauradip/STALE#16"),
    needs=frozenset({"births", "growth", "inputs", "loop", "numbers", "static"}),
    judge=judge,
    explains=("SCHEDULE_MOVES_OVER_SKIPS", "NORM_STATISTICS_POISONED", "UPDATE_NOT_FINITE"),
)
