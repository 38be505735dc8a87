"""A part of the data is never drawn: a sampler's weights are too few or 0, or indices too small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.signals.data.indexing import RowLedger
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_ROWS = 32
_BATCHES = 4
_SHARE = 0.25  # of the weights; fewer may be samples that are left out on purpose
_AGAIN = 3  # times that each row was taken, on average


def judge(evidence: Evidence) -> Finding | None:
    """Find samplers with fewer weights than samples, and tensors of which few rows are taken."""
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
    for line in evidence.of(PassLedger).lines:
        if (
            line.samples != line.weights
            or line.zeros < _SHARE * line.weights
            or line.drawn > line.weights - line.zeros
        ):
            continue
        return Finding(
            summary=f"{line.zeros} of {line.weights} weights of the WeightedRandomSampler are 0: "
            "it never draws these samples",
            facts=(
                f"{line.drawn} different samples were drawn {line.draws} times",
                "a division without fractions, such as 1 // count, makes weights of 0",
            ),
            change=(
                "+ # give each sample a weight above 0, if it is not left out on purpose",
                *((f"  {line.site.text}",) if line.site else ()),
            ),
            confidence=POSSIBLE,
            site=line.site,
        )
    for each in evidence.of(RowLedger).sources:
        if (
            each.rows < _ROWS
            or 2 * each.taken > each.rows
            or each.takes < _AGAIN * each.taken
            or min(each.steps, each.batches) < _BATCHES
        ):
            continue
        return Finding(
            summary=f"the loop takes only {each.taken} of {each.rows} rows: the other "
            f"{each.rows - each.taken} were never given to a model",
            facts=(f"rows were taken {each.takes} times, in {each.batches} different batches",),
            change=(
                "+ # draw indices from all rows: torch.randperm(len(inputs)), or a range up to it",
                *((f"  {each.site.text}",) if each.site else ()),
            ),
            confidence=LIKELY,
            site=each.site,
        )
    return None


RULE = Rule(
    code="SAMPLES_NEVER_DRAWN",
    name="samples that no batch contains",
    rows=(60,),
    citations=("deep-voice/soundbay#49",),
    needs=frozenset({"indexing", "passes"}),
    judge=judge,
    harmless=True,
)
