"""A training draws the same random numbers again and again, because its seed is set in the loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.remedies import without_seed
from halfstep.doctor.signals.data.draws import MASKS, RandomDraws, Repetition
from halfstep.doctor.verdict import CERTAIN, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_ORDERS = frozenset({"randperm", "indices", "order"})


def judge(evidence: Evidence) -> Finding | None:
    """Find masks of dropout and noise of a training that repeat."""
    found = [each for each in evidence.of(RandomDraws).repetitions if each.what not in _ORDERS]
    for each in sorted(found, key=lambda each: each.what != MASKS):
        what = each.what if each.what == MASKS else f"the numbers of {each.what}()"
        again = (
            f"because {each.function}({each.seed}) sets its generator back before each of them"
            if each.function
            else "because a generator with the same seed draws them"
        )
        line = each.seeded or each.site
        return Finding(
            summary=f"{what} were the same {each.times} times, {again}",
            facts=(f"drawn in: {each.site.text}" if each.site else "drawn in the training",),
            change=_made_once(each)
            if each.seed and not each.function
            else without_seed(each.seeded),
            confidence=CERTAIN if each.function else POSSIBLE,
            site=line,
        )
    return None


def _made_once(repetition: Repetition) -> tuple[str, ...]:
    line = repetition.site
    return (
        "+ # make the generator once, before the training",
        *((f"  {line.text}",) if line else ()),
    )


RULE = Rule(
    code="RANDOM_NUMBERS_REPEAT",
    name="random numbers that repeat",
    rows=(60,),
    citations=(
        "facebookresearch/DepthContrast#14",
        "k2-fsa/icefall#221",
        "zhixuhao/unet#87",
    ),
    needs=frozenset({"draws"}),
    judge=judge,
    explains=("ORDER_REPEATS",),
    harmless=True,
)
