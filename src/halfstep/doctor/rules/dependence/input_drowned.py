"""The input is lost in the noise of a code, as in a variational autoencoder that has collapsed.

The means of the codes are the same for all samples, and only the noise reaches the decoder, so the
predictions do not depend on the input. Often, the reconstruction is a mean over all elements, and
the divergence a sum over the codes, which then weighs as much more as there are elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_DROWNED = 0.01  # of the variance of the noise
_FEWEST = 64  # iterations; codes may take some steps to become informative


def judge(evidence: Evidence) -> Finding | None:
    """Find codes whose means tell no samples apart."""
    for found in evidence.of(Influence).drowned:
        if found.share > _DROWNED or evidence.loop.iterations < _FEWEST:
            continue
        return Finding(
            summary=f"the input is lost in noise: the means of {counted(found.codes, 'code')} are "
            "nearly the same for all samples, and the predictions see the input only through them",
            facts=(
                (
                    "the variance of a mean over the samples is at most "
                    f"{found.share:.1g} of that of the noise, after "
                    f"{counted(evidence.loop.iterations, 'step')}"
                ),
                f"{found.loss} has {counted(found.elements, 'prediction')} for each sample",
            ),
            change=(
                "+ # a term of the loss that pulls the codes to the noise weighs too much: reduce",
                "+ # both in one way, a sum over the elements of a sample and a mean over samples;",
                f"+ # a mean over {found.elements} elements weighs that many times less",
            ),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


RULE = Rule(
    code="INPUT_DROWNED",
    name="an input that is lost in noise",
    rows=(11,),
    citations=("zdebruine/MMVAE#19", "keras-team/keras#3383"),
    needs=frozenset({"influence", "loop"}),
    judge=judge,
    harmless=True,
)
