"""The step of a generator moves the discriminator's scores as the discriminator's own step does.

The discriminator lowers the scores of the generated samples, and so does the generator, for example
with the label of generated samples in its own loss. Nothing opposes the discriminator then: both
losses fall, and the samples move away from the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.movement.adversaries import Agreements
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a generator that agrees with its discriminator."""
    for found in evidence.of(Agreements).found:
        names = evidence.of(UserNames)
        scores = names.of(found.scores).name or "a network"
        makes = names.of(found.makes).name or "another model"
        way, back = ("raises", "lower") if found.rises else ("lowers", "raise")
        return Finding(
            summary=f"the step of {makes} {way} what {scores} gives for its samples, and so does "
            f"the step of {scores}, which moves the data the other way: the two do not oppose each "
            "other, and the samples move away from the data",
            facts=(
                f"the same in {counted(found.steps, 'examined step')} of {makes}",
                f"the step of {scores} calls it at {found.other}",
            ),
            change=(
                *((f"  {found.site.text}",) if found.site else ()),
                f"+ # the loss of {makes} must {back} this result: give it the label of the data,",
                "+ # or the opposite sign",
            ),
            confidence=LIKELY,
            site=found.site,
        )
    return None


RULE = Rule(
    code="GENERATOR_HELPS_DISCRIMINATOR",
    name="a generator that does not oppose its discriminator",
    rows=(11,),
    citations=("ptran1203/pytorch-animeGAN#17", "yunjey/pytorch-tutorial#45"),
    needs=frozenset({"adversaries", "names"}),
    judge=judge,
    harmless=True,
)
