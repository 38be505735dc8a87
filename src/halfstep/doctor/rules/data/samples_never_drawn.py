"""A sampler draws only the first samples of a data set, because it has too few weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.data.passes import PassLedger
from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a WeightedRandomSampler with fewer weights than samples."""
    for line in evidence.of(PassLedger).lines:
        if line.samples is None or not 0 < 2 * line.weights <= line.samples:
            continue
        return Finding(
            summary=f"the WeightedRandomSampler has {line.weights} weights for {line.samples} "
            f"samples: it can only draw the first {line.weights} of them",
            facts=(f"{line.drawn} different samples were drawn {line.draws} times",),
            change=(
                (
                    "+ # give the sampler a weight for each sample, that of its class: "
                    "weights[targets]"
                ),
                *((f"  {line.site.text}",) if line.site else ()),
            ),
            site=line.site,
        )
    return None


RULE = Rule(
    code="SAMPLES_NEVER_DRAWN",
    name="samples that no batch contains",
    rows=(60,),
    citations=("deep-voice/soundbay#49",),
    needs=frozenset({"passes"}),
    judge=judge,
    harmless=True,
)
