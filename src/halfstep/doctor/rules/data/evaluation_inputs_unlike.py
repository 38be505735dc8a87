"""A model is evaluated on inputs that are scaled or normalised unlike those of its training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.inputs import InputScales
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find models whose evaluations are all given inputs of another size."""
    for each in evidence.of(InputScales).models:
        trained = f"a mean of {each.mean:.3g} and a deviation of {each.deviation:.3g}"
        evaluated = (
            f"a mean of {each.evaluated_mean:.3g} and a deviation of {each.evaluated_deviation:.3g}"
        )
        return Finding(
            summary=f"the inputs of the model have {trained} in training, and {evaluated} in "
            "evaluation: they are scaled or normalised in one of them only",
            facts=(
                f"this is so in {counted(each.calls, 'evaluation')}",
                *((f"training: {each.training.text}",) if each.training else ()),
            ),
            change=(
                "+ # prepare the inputs as in training: the same scale, mean and deviation",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="EVALUATION_INPUTS_UNLIKE",
    name="inputs of an evaluation that are unlike those of the training",
    rows=(60,),
    citations=(
        "jchen42703/kits19-cnn#22",
        "keras-team/keras#13517",
        "leeyeehoo/CSRNet-pytorch#25",
    ),
    needs=frozenset({"inputs_of_phases"}),
    judge=judge,
    harmless=True,
)
