"""A schedule is planned for the steps of a run, and its moves cover only a small part of it."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from halfstep.doctor.record.passes import LoaderPasses, PassLedger
from halfstep.doctor.record.rates import LearningRates, Schedule
from halfstep.doctor.record.source import is_only_call
from halfstep.doctor.remedies import moved, with_length
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

_FEWEST = 20  # steps; a shorter program may be a test of the loop
_COVERED = 0.6  # of the plan
_BACK = 3  # times; a loop may go back once, for another phase
_SLACK = 0.02  # of a length in steps, and two steps: programs count the ends differently


def judge(evidence: Evidence) -> Finding | None:
    """Find a plan as long as the run, in another unit than that of its moves, or that restarts."""
    ledger = evidence.of(LearningRates)
    for each in ledger.schedules:
        length = each.length
        if not length or not each.site or each.steps < _FEWEST:
            continue
        if each.furthest > _COVERED * length:
            continue
        if each.backs >= _BACK:
            return _set_back(each, length)
        if each.restored or each.moves < 2:
            continue
        unit = _unit(each, length, evidence.of(PassLedger))
        if unit:
            return _too_seldom(each, length, unit, ledger.of(each.optimizer).site)
    return None


def _unit(schedule: Schedule, planned: int, passes: PassLedger) -> str:
    """Return what the length of a plan counts, if it is not its moves; "" if unknown."""
    whole = schedule.steps * ceil(schedule.backwards / schedule.steps)  # if no window is cut short
    counts = (
        ("step", schedule.steps),
        *(("backward pass", n) for n in (schedule.backwards, whole)),
    )
    for unit, count in counts:
        if abs(count - planned) <= 2 + _SLACK * count:
            return unit
    samples = {count for line in passes.lines for count in _samples(line)}
    return "sample" if planned in samples else ""


def _samples(line: LoaderPasses) -> tuple[int, ...]:
    """Return the samples of all passes of a line: as many as it drew, or as the data set has."""
    return line.draws, line.passes * (line.samples or 0)


def _too_seldom(schedule: Schedule, length: int, unit: str, step: Site | None) -> Finding:
    with_each_step = moved(schedule.site, step) if unit == "step" else ()
    other_length = with_length(schedule, schedule.moves)
    return Finding(
        summary=f"{schedule.kind} has a length of {length}, one for each {unit}, and "
        f"moved only {schedule.moves} times, so the run covers {_share(schedule, length)} of the "
        "schedule",
        facts=(
            f"{schedule.steps} steps and {schedule.backwards} backward passes since it was made",
        ),
        change=with_each_step or other_length,
        otherwise=(other_length,) if with_each_step else (),
        confidence=LIKELY,
        site=schedule.site if unit == "step" else schedule.made or schedule.site,
    )


def _set_back(schedule: Schedule, length: int) -> Finding:
    text = schedule.site.text if schedule.site else ""
    line = text if is_only_call(text) and ".step(" in text else "scheduler.step(i / len(loader))"
    return Finding(
        summary=f"the loop sets {schedule.kind} back to an earlier position "
        f"{schedule.backs} times, so the run covers {_share(schedule, length)} of the schedule, "
        f"whose length is {length}",
        facts=(f"the furthest position is {schedule.furthest:.3g}",),
        change=(
            f"- {line}",
            f"+ {line.replace('.step(', '.step(epoch + ', 1)}  # a position since the beginning",
        ),
        confidence=LIKELY,
        site=schedule.site,
    )


def _share(schedule: Schedule, length: int) -> str:
    return f"{100 * schedule.furthest / length:.2g} %"


RULE = Rule(
    code="SCHEDULE_UNFINISHED",
    name="a schedule of which the run covers a small part",
    rows=(59,),
    citations=("pytorch/pytorch#65417",),
    needs=frozenset({"passes", "rates"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_LOW",),
    harmless=True,
)
