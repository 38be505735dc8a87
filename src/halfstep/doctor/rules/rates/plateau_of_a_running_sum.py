"""A scheduler waits for a plateau of a sum that no epoch resets, so each epoch counts as worse."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates
from halfstep.doctor.signals.ledgers.plateaus import Plateau, Plateaus
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 5  # numbers
_INTERVALS = 3
_ALIKE = 0.05  # of the ratio of an increase and the losses of its epoch
_LARGE, _LARGEST, _SMALLEST = 0.35, 1.5, 0.1  # of the first number, for sums of unknown losses


def judge(evidence: Evidence) -> Finding | None:
    """Find numbers that only grow, each time by the sum of the losses since the last one."""
    ledger = evidence.of(LearningRates)
    for each in evidence.of(Plateaus).schedulers:
        rates = ledger.of(each.optimizer)
        increases = [new - old for old, new in pairwise((0.0, *each.metrics))]
        if each.mode != "min" or len(increases) < _FEWEST or not rates.changes:
            continue
        if not all(math.isfinite(value) and value > 0 for value in increases):
            continue
        share, source = _share(evidence, each, increases), "steps"
        if not share:
            share, source = _alike([*zip(increases, each.evaluated, strict=True)]), "evaluation"
        if not share and not _is_sum(increases):
            continue
        line = each.site.text if each.site else "scheduler.step(running_loss)"
        how = (
            f"each number is the last one plus the losses of the {source} since then"
            if share
            else "each number is the last one plus about as much as the first one"
        )
        if share and not math.isclose(share, 1, rel_tol=_ALIKE):
            how += f", times {share:.3g}"
        return Finding(
            summary="ReduceLROnPlateau is given a sum that is never reset: it only grows, from "
            f"{each.metrics[0]:.3g} to {each.metrics[-1]:.3g}, so each epoch counts as worse, and "
            f"the learning rate falls to {rates.last:.3g}",
            facts=(how,),
            change=(
                "+ # at the start of each epoch, set to 0 the sum that this line gives:",
                f"  {line}",
            ),
            confidence=LIKELY if share else POSSIBLE,
            site=each.site,
        )
    return None


def _share(evidence: Evidence, plateau: Plateau, increases: list[float]) -> float:
    """Return the ratio of increases and sums of the losses of steps."""
    losses = {
        each.iteration: each.loss
        for each in evidence.numbers.steps
        if each.optimizer == plateau.optimizer and each.loss is not None
    }
    found = []
    for (start, end), increase in zip(pairwise((0, *plateau.iterations)), increases, strict=True):
        own = [losses[step] for step in range(start, end) if step in losses]
        if own and len(own) == end - start and sum(own):
            found.append((increase, sum(own)))
    return _alike(found)


def _alike(found: list[tuple[float, float]]) -> float:
    """Return the ratio of increases and sums of losses, if it is the same in several epochs."""
    ratios = [increase / total for increase, total in found if total]
    if len(ratios) < _INTERVALS:
        return 0.0
    middle = median(ratios)
    alike = all(math.isclose(each, middle, rel_tol=_ALIKE) for each in ratios)
    return middle if alike else 0.0


def _is_sum(increases: list[float]) -> bool:
    """Return whether numbers grow like the sum of something that stays of one size, or falls.

    A validation loss that rises from its beginning grows by less than a first loss in an epoch.
    """
    first, rest = increases[0], increases[1:]
    return mean(rest) >= _LARGE * first and _SMALLEST * first <= min(rest) <= max(rest) <= (
        _LARGEST * first
    )


RULE = Rule(
    code="PLATEAU_OF_A_RUNNING_SUM",
    name="a scheduler that waits for a plateau of a sum that only grows",
    rows=(59,),
    citations=("OlgaChernytska/2D-Hand-Pose-Estimation-RGB#2",),
    needs=frozenset({"numbers", "plateaus", "rates"}),
    judge=judge,
    explains=("LEARNING_RATE_FALLS_EARLY",),
    harmless=True,
)
