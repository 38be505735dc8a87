"""An average of the weights is computed with wrong factors: swapped, or with another sum than 1."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.averages import AverageLedger, AverageLine
from halfstep.doctor.signals.movement.multiples import ScaledModel, ScaledModels
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 4  # updates
_STEPS = 4  # from one update to the next; rarer ones may be copies
_SWAPPED = 0.1  # of the average is kept, at most
_COPY = 5e-5  # of it is kept if the loop copies the weights
_OFF = 0.01  # of the sum of both factors


def judge(evidence: Evidence) -> Finding | None:
    """Find such factors in the updates of one line, or their sum in the weights of a model."""
    ledger = evidence.of(AverageLedger)
    for line in ledger.lines:
        if len(line.updates) >= _FEWEST and line.is_within(_STEPS):
            finding = _swapped(line) or _off(line)
            if finding is not None:
                return finding
    models = evidence.of(ScaledModels).models
    return next((_multiple(each, ledger, evidence) for each in models), None)


def _multiple(model: ScaledModel, ledger: AverageLedger, evidence: Evidence) -> Finding:
    """Return the finding of a model whose weights are a multiple of the trained ones."""
    name = evidence.of(UserNames).of(model.number).name or "the evaluated model"
    sums = [
        each
        for each in ledger.lines
        if len(each.updates) >= _FEWEST
        and all(abs(its.kept - 1) <= _OFF and its.added > 0 for its in each.updates)
    ]
    added = f"{median(its.added for its in sums[0].updates):.4g}" if sums else ""
    return Finding(
        summary=f"the weights of {name} are {model.factor:.3g} times those of the trained model: "
        "the factors of the weights in this average do not sum to 1",
        facts=(
            f"the same in {model.parameters} compared parameters, and their directions are alike",
            f"evaluated at {model.site}",
            *([f"an update adds {added} * weights to a sum"] if added else []),
        ),
        change=(
            f"  {sums[0].site.text if sums and sums[0].site else ''}",
            "+ # the factors of all weights that go into the average must sum to 1, so divide by",
            f"+ # {model.factor:.3g}, or by the number of weights that were added",
        ),
        confidence=LIKELY,
        site=sums[0].site if sums else model.site,
    )


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
    needs=frozenset({"averaging", "multiples", "names"}),
    judge=judge,
    harmless=True,
)
