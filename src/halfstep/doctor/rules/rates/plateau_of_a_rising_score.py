"""A scheduler waits for a plateau in the wrong direction, and lowers the rate of good training."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING

from halfstep.doctor.record.rates import LearningRates, Schedule
from halfstep.doctor.record.source import with_argument
from halfstep.doctor.signals.ledgers.plateaus import Plateaus
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST = 4  # metrics
_LOSSES = 5
_FALLS = 0.95  # of the first losses
_LIKE = 5.0  # times: a metric as large as the loss may be a loss
_BELOW = 0.5  # of the losses: a metric that begins below is no loss
_MOST = 20_000  # samples of an evaluation
_CHANCE = 1e-3
_ROUNDING = 2e-7  # of an fp32 number
_MIRRORED = 0.15  # of the spread of the losses
_APART = 2.0  # times
_KINDS = {
    ("max", LIKELY): "it is given parts of one number of samples, such as an accuracy",
    ("max", POSSIBLE): "it is given numbers below the loss of the training, such as a score",
    ("min", LIKELY): "it is given numbers as large as the loss",
}
_NEGATIVE = "it is given the loss with the other sign, such as a log-likelihood"


def judge(evidence: Evidence) -> Finding | None:
    """Find metrics that improve with the loss, while the scheduler lowers the rate."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        values = [value for value in each.metrics if math.isfinite(value)]
        rates, losses = ledger.of(each.optimizer), _losses(evidence, each.optimizer)
        if not each.mode or len(values) < _FEWEST or len(losses) < 2 * _LOSSES:
            continue
        first, last = mean(losses[:_LOSSES]), mean(losses[-_LOSSES:])
        if not rates.changes or last > _FALLS * first or not _gets_worse(values, each.mode):
            continue
        if each.mode == "min" and _mirrors(evidence, each):
            return _finding(each, values, (first, last), rates.last, LIKELY, _NEGATIVE)
        is_below = 0 < values[-1] < last or _starts_below(evidence, each, values)
        confidence = _confidence(each.mode, values, first, is_below=is_below)
        if confidence:
            what = _KINDS["max" if each.mode == "min" else "min", confidence]
            return _finding(each, values, (first, last), rates.last, confidence, what)
    return None


def _losses(evidence: Evidence, number: int) -> list[float]:
    return [
        each.loss
        for each in evidence.numbers.steps
        if each.optimizer == number and each.loss is not None and math.isfinite(each.loss)
    ]


def _mirrors(evidence: Evidence, schedule: Schedule) -> bool:
    """Return whether each metric is about the negative mean of the losses before it."""
    steps = {
        each.iteration: each.loss
        for each in evidence.numbers.steps
        if each.optimizer == schedule.optimizer and each.loss is not None
    }
    pairs = []
    for each in evidence.of(Plateaus).schedulers:
        if each.optimizer != schedule.optimizer or each.mode != schedule.mode:
            continue
        for (start, end), metric in zip(pairwise((0, *each.iterations)), each.metrics, strict=True):
            own = [steps[number] for number in range(start, end) if number in steps]
            if own and math.isfinite(metric + sum(own)):
                pairs.append((metric, mean(own)))
    if len(pairs) < _FEWEST:
        return False
    losses = [loss for _, loss in pairs]
    sums = [abs(metric + loss) for metric, loss in pairs]
    differences = [abs(metric - loss) for metric, loss in pairs]
    is_close = median(sums) <= _MIRRORED * (max(losses) - min(losses))
    # Near 0, a number is close to the loss and to its negative.
    return is_close and sum(differences) > _APART * sum(sums)


def _starts_below(evidence: Evidence, schedule: Schedule, values: list[float]) -> bool:
    """Return whether metrics up to 1 begin far below the losses of the steps before them."""
    for each in evidence.of(Plateaus).schedulers:
        if (each.optimizer, each.mode) == (schedule.optimizer, schedule.mode):
            losses = [
                step.loss
                for step in evidence.numbers.steps
                if step.optimizer == each.optimizer
                and step.iteration < each.iterations[0]
                and step.loss is not None
            ]
            then = mean(losses[-_LOSSES:]) if losses else 0.0
            return 0 <= values[0] < _BELOW * then and max(values) <= 1
    return False


def _confidence(mode: str, values: list[float], first: float, *, is_below: bool) -> str:
    """Return how certain it is that larger values are better, or smaller ones in mode "max".

    A validation loss that rises from its beginning is a reason to lower the rate, and so is an
    accuracy that falls. A validation loss is hardly far below the training loss of its time, and
    one that rises is at least as large as it is at the end.
    """
    if mode == "min":
        return LIKELY if _are_shares(values) else POSSIBLE if is_below else ""
    is_loss = min(values) > 0 and first / _LIKE <= values[0] <= first * _LIKE
    return LIKELY if is_loss and not _are_shares(values) else ""


def _gets_worse(values: list[float], mode: str) -> bool:
    """Return whether metrics move against a mode, from their beginning on."""
    signed = values if mode == "min" else [-each for each in values]
    half = len(signed) // 2
    early = signed.index(min(signed)) <= len(signed) // 4
    return early and mean(signed[half:]) > mean(signed[:half]) and signed[-1] > signed[0]


def _are_shares(values: list[float]) -> bool:
    """Return whether all values are whole parts of one number of samples, as accuracies are."""
    wanted = {*values}
    if min(wanted) < 0 or max(wanted) > 100:
        return False
    parts = [each if max(wanted) <= 1 else each / 100 for each in wanted]
    for count in range(1, _MOST):
        slack = count * _ROUNDING + 1e-9
        if count * (2 * slack) ** len(parts) > _CHANCE:
            return False  # so many samples have a share near any number
        if all(abs(count * each - round(count * each)) <= slack for each in parts):
            return count >= len(parts)
    return False


def _finding(
    schedule: Schedule,
    values: list[float],
    losses: tuple[float, float],
    rate: float,
    confidence: str,
    what: str,
) -> Finding:
    made = schedule.made.text if schedule.made else ""
    is_min = schedule.mode == "min"
    mode = "max" if is_min else "min"
    new = with_argument(made, schedule.kind, "mode", f'"{mode}"', position=1)
    moved = "rises" if is_min else "falls"
    return Finding(
        summary=f'{schedule.kind} has the mode "{schedule.mode}", but what it is given {moved} '
        f"from {values[0]:.3g} to {values[-1]:.3g} while the loss falls from {losses[0]:.3g} to "
        f"{losses[1]:.3g}: each improvement counts as none, and lowers the learning rate",
        facts=(
            f"the last learning rate is {rate:.3g}",
            what,
        ),
        change=(f"- {made}", f"+ {new}")
        if new
        else (f'+ # make {schedule.kind} with mode="{mode}"',),
        confidence=confidence,
        site=schedule.made,
    )


RULE = Rule(
    code="PLATEAU_OF_A_RISING_SCORE",
    name="a scheduler that waits for a plateau in the wrong direction",
    rows=(59,),
    citations=("md-mohaiminul/ViS4mer#4", "facebookresearch/fairseq#2205"),
    needs=frozenset({"numbers", "plateaus", "rates"}),
    judge=judge,
    harmless=True,
)
