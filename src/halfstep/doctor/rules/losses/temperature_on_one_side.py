"""A temperature divides the logits of the teacher and not those of the student.

The student then learns the softened distribution as its own, and becomes far less sure than the
teacher.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.values.temperatures import Temperatures
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # calls
_HIGH = 3.0  # A temperature that makes the confidence of a teacher right is usually below 2.


def judge(evidence: Evidence) -> Finding | None:
    """Find a distillation with a temperature on one side."""
    for each in evidence.of(Temperatures).lines:
        if each.count < _FEWEST or not (each.is_squared or each.temperature >= _HIGH):
            continue
        square = (
            f"the loss is multiplied by {each.temperature**2:.3g}, the square of the temperature, "
            "which is right where it divides both"
        )
        return Finding(
            summary=f"the logits behind the targets are divided by a temperature of "
            f"{each.temperature:.3g}, and those of the trained model are not, so it learns "
            "probabilities that are too even",
            facts=(
                *((square,) if each.is_squared else ()),
                f"in {counted(each.count, 'call')} of the loss",
            ),
            change=(
                f"+ # divide the logits of the trained model by {each.temperature:.3g}, too",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY if each.is_squared else POSSIBLE,
            site=each.site,
        )
    return None


RULE = Rule(
    code="TEMPERATURE_ON_ONE_SIDE",
    name="a temperature that divides the logits of one side only",
    rows=(35,),
    citations=(
        "huawei-noah/Pretrained-Language-Model#11",
        "philschmid/knowledge-distillation-transformers-pytorch-sagemaker#1",
    ),
    needs=frozenset({"temperatures"}),
    judge=judge,
    harmless=True,
)
