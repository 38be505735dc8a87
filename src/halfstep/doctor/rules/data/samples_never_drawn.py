"""A part of the data is never drawn: a sampler has too few weights, or a loop too small indices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.signals.data.indexing import RowLedger
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_ROWS = 32
_BATCHES = 4
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
