"""An average of the weights is computed with wrong factors: swapped, or with another sum than 1."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.averages import AverageLedger, AverageLine
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 4  # updates
_STEPS = 4  # from one update to the next; rarer ones may be copies
_SWAPPED = 0.1  # of the average is kept, at most
_COPY = 5e-5  # of it is kept if the loop copies the weights
_OFF = 0.01  # of the sum of both factors


def judge(evidence: Evidence) -> Finding | None:
    """Find the updates of one line, in successive steps or nearly so, all with such factors."""
    for line in evidence.of(AverageLedger).lines:
        if len(line.updates) >= _FEWEST and line.is_within(_STEPS):
            finding = _swapped(line) or _off(line)
            if finding is not None:
                return finding
    return None


def _swapped(line: AverageLine) -> Finding | None:
    """Find updates that keep next to nothing; a warm-up of the decay ends with more."""
    kept, added = [each.kept for each in line.updates], [each.added for each in line.updates]
    usual = median(kept)
    is_sum = all(abs(a + b - 1) <= _OFF for a, b in zip(kept, added, strict=True))
    if not is_sum or max(kept) > _SWAPPED or usual < _COPY:
        return None
    return Finding(
        summary=f"each update keeps {usual:.3g} of the average and takes {median(added):.4g} of "
        "the weights, so the average is nothing but the latest weights: the factors are swapped",
        facts=(f"the same in {len(kept)} measured updates",),
        change=(
            f"  {line.site.text if line.site else ''}",
            f"+ # average = {median(added):.4g} * average + {usual:.3g} * weights",
        ),
        confidence=LIKELY,
        site=line.site,
    )


def _off(line: AverageLine) -> Finding | None:
    """Find updates whose factors do not sum to 1, so that the average shrinks or grows."""
    # Far from the weights, the first tensor may be something else, such as a gradient.
    if not line.updates[0].near:
        return None
    usual = [each for each in line.updates if each.near or each.added > _OFF]
    if any(not 0 < each.kept < 1 - _OFF / 10 or each.added < -_OFF for each in usual):
        return None
    sums = [each.kept + each.added for each in usual]
    if len(sums) < _FEWEST or not (max(sums) < 1 - _OFF or min(sums) > 1 + _OFF):
        return None
    kept, added = median(each.kept for each in usual), median(each.added for each in usual)
    moves = "shrinks towards 0" if sums[0] < 1 else "grows with each update"
    return Finding(
        summary=f"an update computes {kept:.4g} * average + {added:.4g} * weights; both factors "
        f"sum to {kept + added:.4g}, not to 1, so the average {moves}",
        facts=(f"the same in {len(sums)} measured updates",),
        change=(
            f"  {line.site.text if line.site else ''}",
            f"+ # average = {kept:.4g} * average + {1 - kept:.4g} * weights of the trained model",
        ),
        confidence=LIKELY,
        site=line.site,
    )


RULE = Rule(
    code="AVERAGE_FACTORS",
    name="an average of weights with wrong factors",
    rows=(29,),
    citations=("ultralytics/yolov5#8979", "huggingface/diffusers#1864"),
    needs=frozenset({"averaging"}),
    judge=judge,
    harmless=True,
)
