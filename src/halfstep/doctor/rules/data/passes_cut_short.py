"""Each pass over a loader ends after the same few batches, so the other samples are never used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 3  # passes
_SHARE = 0.5  # of the samples
_AGAIN = 3  # times that each sample was drawn, on average


def judge(evidence: Evidence) -> Finding | None:
    """Find passes that begin the same batches again."""
    for line in evidence.of(PassLedger).lines:
        if (
            line.samples is None
            or line.passes < _FEWEST
            or max(line.taken) >= line.batches
            or line.same < line.passes
            or line.drawn > _SHARE * line.samples
            or line.draws < _AGAIN * line.drawn
        ):
            continue
        first = max(line.taken)
        is_restarted = first == 1 and (line.site is None or not line.site.text.startswith("for "))
        if not is_restarted and evidence.environment.framework:
            continue  # Frameworks have settings that limit the batches of an epoch.
        how = (
            "the line begins the loader again for each batch"
            if is_restarted
            else "the loop leaves the loader early"
        )
        change = (
            (
                "+ # make the iterator once, and begin again only at its end; or loop over the "
                "loader: for batch in loader:"
            )
            if is_restarted
            else "+ # go on to the end of the loader; or draw another order each time: shuffle=True"
        )
        return Finding(
            summary=f"{counted(line.passes, 'pass', 'passes')} over a loader of {line.batches} "
            f"batches used only the first {counted(first, 'batch', 'batches')}: "
            f"{line.samples - line.drawn} of {line.samples} samples were never used; {how}",
            facts=(
                "each of these passes drew the same samples in the same order",
                f"{line.drawn} samples were drawn {line.draws} times",
            ),
            change=(change, *((f"  {line.site.text}",) if line.site else ())),
            confidence=LIKELY if is_restarted else POSSIBLE,
            site=line.site,
        )
    return None


RULE = Rule(
    code="PASSES_CUT_SHORT",
    name="passes over the data that always end after the same batches",
    rows=(60,),
    citations=(
        "leohsuofnthu/Pytorch-IterativeFCN#7",
        "mead-ml/mead-baseline#667",
    ),
    needs=frozenset({"environment", "passes"}),
    judge=judge,
    harmless=True,
)
