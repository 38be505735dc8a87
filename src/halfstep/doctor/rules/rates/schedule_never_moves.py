"""A scheduler never moves the rate that the steps use: it stands, or moves another optimizer's."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import PassLedger
from halfstep.doctor.record.rates import LearningRates, Rates, Schedule
from halfstep.doctor.record.source import with_positional
from halfstep.doctor.remedies import with_length
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.passes import LoaderPasses
    from halfstep.doctor.record.sites import Site

_FEWEST = 20  # steps; a shorter program may be a test of the loop
_SLACK = 2  # of a length in steps, as programs count the ends differently
_IDLE = 2  # moves
_PASSES = 3
_BELOW = 0.5  # of the rate from which a scheduler computes


def judge(evidence: Evidence) -> Finding | None:
    """Find a scheduler whose plan no step uses."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        finding = _moves_another(each, ledger) or _stands(each, ledger, evidence.of(PassLedger))
        if finding is not None:
            return finding
    return next(filter(None, map(_stays_below, _without_scheduler(ledger))), None)


def _moves_another(schedule: Schedule, ledger: LearningRates) -> Finding | None:
    """Find a scheduler that moves on, while another optimizer has replaced its own."""
    successor = ledger.of(schedule.successor)
    if schedule.idle < _IDLE or successor.steps < _FEWEST or successor.changes:
        return None
    if any(each.moves for each in ledger.schedules_of(successor.number)):
        return None
    return Finding(
        summary=f"{schedule.kind} does not move the learning rate in {successor.steps} steps: "
        "the optimizer that makes them is another one than that of the scheduler",
        facts=(
            f"{schedule.idle} moves followed steps of the other optimizer alone",
            f"its rate was {successor.last:.3g} in each of {successor.steps} steps",
        ),
        change=_made_again(schedule, successor),
        confidence=LIKELY,
        site=successor.made or schedule.site,
    )


def _made_again(schedule: Schedule, successor: Rates) -> tuple[str, ...]:
    """Return a change that makes the scheduler again for the new optimizer, with what is left."""
    old, new = schedule.made, successor.made
    words = ("+ # make a scheduler of the new optimizer, too, with the length that is left",)
    name = re.match(r"([\w.]+)\s*=(?!=)", new.text) if new else None
    # A variable of another function is not the one that the loop moves.
    is_seen = "." in schedule.name or (old and new and old.function == new.function)
    made = with_positional(schedule.made_by, schedule.kind, 0, name[1]) if name else None
    if new is None or not is_seen or made is None or "\n" in made:
        return words
    again = replace(schedule, made_by=made)
    line = next((each for each in with_length(again, schedule.idle) if each[0] == "+"), "")
    return (f"  {new.text}", line if _is_code(line) else f"+ {made}")


def _is_code(line: str) -> bool:
    return bool(line) and not line.startswith("+ #")


def _stands(schedule: Schedule, ledger: LearningRates, data: PassLedger) -> Finding | None:
    """Find a scheduler that never moved, although its plan was for the steps of this program."""
    steps, rates = schedule.steps, ledger.of(schedule.optimizer)
    if schedule.moves or schedule.restored or rates.changes or steps < _FEWEST:
        return None
    if any(other.moves for other in ledger.schedules_of(schedule.optimizer)):
        return None  # a scheduler that another one contains or replaces
    if schedule.below:
        return _finding(schedule, "the rate stays at the start of a warm-up", rates.site)
    if schedule.planned is not None and abs(schedule.planned - steps) <= _SLACK:
        return _finding(
            schedule, f"its length is {schedule.planned} moves, one for each step", rates.site
        )
    why, unit = _reason(schedule, data)
    return _finding(schedule, why, None, unit) if why else None


def _reason(schedule: Schedule, data: PassLedger) -> tuple[str, str]:
    """Return why a scheduler was to move, and after what; "" if it may stand on purpose."""
    if schedule.planned in {*map(_whole_passes, data.lines)} - {0}:
        what = "pass over the data"
        return f"its length is {schedule.planned} moves, one for each {what}", what
    if schedule.unused:
        return "no line of the program calls its step()", "unit of its plan, a step or an epoch"
    return "", ""


def _whole_passes(line: LoaderPasses) -> int:
    """Return the number of passes that gave all their batches; 0 for few, or if one did not."""
    is_whole = line.passes >= _PASSES and {*line.taken} == {line.batches}
    return line.passes if is_whole else 0


def _without_scheduler(ledger: LearningRates) -> Iterator[Rates]:
    """Yield the rates of optimizers without a scheduler of torch, and without a loaded state."""
    for rates in ledger.optimizers:
        if rates.loaded is None and not any(ledger.schedules_of(rates.number)):
            yield rates


def _stays_below(rates: Rates) -> Finding | None:
    """Find a scheduler of another package that has set the start of a warm-up, and no more."""
    if rates.steps < _FEWEST or rates.changes or not rates.last < _BELOW * rates.planned:
        return None
    return Finding(
        summary=f"the scheduler does not move the learning rate in {rates.steps} steps: it stays "
        f"at {rates.last:.3g}, the start of a warm-up, and the optimizer was made with "
        f"{rates.planned:.3g}",
        facts=(f"the rate was the same in each of {rates.steps} steps",),
        change=(
            "+ # call the scheduler in the unit of its plan: step(epoch + 1) after each epoch;",
            "+ # or make it with a plan in steps, as t_in_epochs=False does for those of timm",
        ),
        confidence=LIKELY,
        site=rates.made or rates.site,
    )


def _finding(schedule: Schedule, why: str, step: Site | None, unit: str = "step") -> Finding:
    """Return the finding; `step` is the line after which the scheduler is to move, if known."""
    move = f"{schedule.name or 'scheduler'}.step()"
    return Finding(
        summary=f"{schedule.kind} does not move the learning rate in {schedule.steps} steps: {why}",
        facts=(f"the rate was the same in each of {schedule.steps} steps",),
        change=(f"@ {step}", f"  {step.text}", f"+ {move}")
        if step
        else (f"+ # after each {unit}: {move}",),
        confidence=LIKELY,
        site=schedule.made,
    )


RULE = Rule(
    code="SCHEDULE_NEVER_MOVES",
    name="a scheduler that never moves the learning rate",
    rows=(59,),
    citations=("thu-ml/tianshou#774",),
    needs=frozenset({"passes", "rates"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_LOW",),
    harmless=True,
)
