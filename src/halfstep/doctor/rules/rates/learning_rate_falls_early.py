"""A scheduler that advances in every step lowers the learning rate to almost 0 early on."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.record.rates import LOW, LearningRates
from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.remedies import with_length
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, StepNumbers
    from halfstep.doctor.record.rates import Rates, Schedule

_EARLY = 0.25  # of the steps
_HALF = 0.5  # of them, if the rate falls on in each step: more is lost than is used
_GONE = 1e-6  # of the highest learning rate; above it, the loss must have come to rest
_STEPS = 20
_TENTH = 0.1  # of the highest learning rate
_PASSES = 4  # over the data; fewer may be the number of a step by chance
_LOSSES = 5
_COSINE = "CosineAnnealingLR"
_SWINGS = 4  # times its length; some loops restart it a few times on purpose
_LEARNED = 0.5  # of the first losses; a model below it has learned before the rate fell
_KEPT = 32  # steps: the losses of the first ones are kept, of two optimizers as well
_CHANGES = 3  # of a rate; a loop that sets another rate once may begin another phase
_RESTS = 0.05  # of the loss at the beginning, by which it changes at the low rate


_ADVICE = (
    "+ # advance the scheduler after the loop over an epoch's batches, or give it its lengths in",
    "+ # steps: epochs * len(loader)",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a rate that falls to almost 0 early, or that swings because its length is in epochs."""
    return _falls(evidence) or _swings(evidence) or _falls_by_hand(evidence)


def _swings(evidence: Evidence) -> Finding | None:
    """Find a cosine without restarts that moves through its length many times."""
    for each in evidence.of(LearningRates).schedules:
        length = each.planned
        if each.kind != _COSINE or not length or each.moves < _SWINGS * length:
            continue
        if each.steps < _STEPS or abs(each.moves - each.steps) > 1:
            continue
        return Finding(
            summary=f"{_COSINE} has a length of {length} and moved {each.moves} times, once in "
            f"each step, so the learning rate falls and rises again every {2 * length} steps",
            facts=(f"{each.moves / length:.3g} times its length",),
            change=with_length(each, each.moves),
            otherwise=_after_the_loop(each),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _falls(evidence: Evidence) -> Finding | None:
    """Find a learning rate that is almost 0 for most of the training, and a high loss.

    A rate that falls for the last time in one of the first steps, whose number is that of one of
    the last epochs, was planned in epochs, also if it ends above almost 0 or the loss is low.
    """
    ledger = evidence.of(LearningRates)
    for number, optimizer in enumerate(evidence.static.optimizers):
        rates = ledger.of(number)
        moved = [each for each in ledger.schedules_of(number) if each.moves and not each.mode]
        moves = sum(each.moves for each in moved)
        if rates.steps < _STEPS or moves < rates.steps - 1 or not moved:
            continue
        highest, last, site = rates.peaks[0], optimizer.largest_rate, moved[0].site
        is_of_epochs = _is_of_epochs(rates, evidence.of(PassLedger))
        start = rates.valley_at if is_of_epochs and rates.low_from < 0 else rates.low_from
        # A scheduler that is meant to end, or to freeze parameters, sets the rate to 0.
        is_gone = bool(last and last <= _GONE * highest)
        falls_on = is_gone and last and last > 0 and rates.changes >= rates.steps / 2
        early = _HALF if falls_on else _EARLY
        if not (last and 0 <= start <= early * rates.steps):
            continue
        steps = [each for each in evidence.numbers.steps if each.optimizer == number]
        is_lost = _stays(steps) and (is_gone or _rests(steps, start))
        if not (is_of_epochs or is_lost):
            continue
        mine = [*ledger.schedules_of(number)]
        lengths = with_length(mine[0], mine[0].moves) if len(mine) == 1 else ()
        if not any(each.startswith("- ") for each in lengths):
            lengths = ()
        later = _after_the_loop(mine[0]) if len(mine) == 1 else ()
        return Finding(
            summary=f"from step {start} of {rates.steps} on, the learning rate is at most "
            f"{max(LOW, rates.last / highest):.2g} of its highest value, so the model hardly "
            "learns: the scheduler advances in every step",
            facts=(
                f"learning rate: {highest:.3g} at most, {rates.last:.3g} at the end",
                f"the scheduler advanced {moves} times in {rates.steps} steps",
            ),
            change=lengths or next(iter(later), _ADVICE),
            otherwise=later if lengths else (),
            confidence=LIKELY,
            site=site,
        )
    return None


def _is_of_epochs(rates: Rates, passes: PassLedger) -> bool:
    """Return whether the last fall of a rate was planned for one of the last epochs."""
    is_fall = rates.last == rates.valley <= _TENTH * rates.peaks[0] and not rates.turns
    return is_fall and any(
        line.passes >= _PASSES and line.passes / 2 <= rates.valley_at <= line.passes
        for line in passes.lines
    )


def _falls_by_hand(evidence: Evidence) -> Finding | None:
    """Find a loop that lowers a rate itself to a thousandth, and learns no more from there on.

    Whether the rest of the run at the lowest rate is intended is not known.
    """
    ledger = evidence.of(LearningRates)
    for rates in ledger.optimizers:
        if (
            rates.steps < _STEPS
            or rates.changes < _CHANGES
            or any(ledger.schedules_of(rates.number))
        ):
            continue
        if not 0 <= rates.low_from <= _EARLY * rates.steps or rates.last <= 0:
            continue
        mine = [each for each in evidence.numbers.steps if each.optimizer == rates.number]
        if len(mine) != rates.steps and rates.low_from >= _KEPT:
            continue  # the losses around this step are not known
        if not _stays(mine) or not _rests(mine, rates.low_from):
            continue
        return Finding(
            summary=f"from step {rates.low_from} of {rates.steps} on, the learning rate is at most "
            f"{LOW * rates.peaks[0]:.2g}, a thousandth of its highest value, and the loss stays as "
            "it is: the program lowers the rate too early",
            facts=(
                f"learning rate: {rates.peaks[0]:.3g} at most, {rates.last:.3g} at the end",
                f"it changed {rates.changes} times",
            ),
            change=(
                "+ # count the length of the schedule and its moves in one unit: for moves after",
                f"+ # each step, the length of this run is {rates.steps} steps",
            ),
            confidence=POSSIBLE,
            site=rates.written or rates.site,
        )
    return None


def _rests(steps: list[StepNumbers], start: int) -> bool:
    """Return whether losses fell before a step, and hardly change from there on."""
    losses = [each.loss for each in steps if each.loss is not None and math.isfinite(each.loss)]
    after = losses[start:]
    half = len(after) // 2
    if len(losses) != len(steps) or half < _LOSSES or start < 2:
        return False
    scale = abs(mean(losses[:2]))
    return (
        abs(mean(after[half:]) - mean(after[:half])) <= _RESTS * scale
        and mean(after[:half]) < (1 - _RESTS) * scale
    )


def _after_the_loop(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """Return changes that move a scheduler after the loop over an epoch's batches; maybe none."""
    line, later = schedule.site, schedule.later
    if line is None or later is None or not is_only_call(line.text):
        return ()
    change = (f"@ {later}", f"+ {line.text}", f"  {later.text}", f"@ {line}", f"- {line.text}")
    return (change,)


def _stays(steps: list[StepNumbers]) -> bool:
    """Return whether the last losses are more than half of the first ones."""
    losses = [each.loss for each in steps if each.loss is not None and math.isfinite(each.loss)]
    if len(losses) < 2 * _LOSSES:
        return False
    return mean(losses[-_LOSSES:]) > _LEARNED * mean(losses[:_LOSSES]) > 0


RULE = Rule(
    code="LEARNING_RATE_FALLS_EARLY",
    name="a learning rate that falls too early",
    rows=(59,),
    citations=("ivadomed/ivadomed#55", "automl/Auto-PyTorch#210"),
    needs=frozenset({"numbers", "passes", "rates", "static"}),
    judge=judge,
    explains=("SCHEDULE_PAST_ITS_END", "LEARNING_RATE_TOO_LOW"),
    harmless=True,
)
