"""The learning rate is so low that the weights hardly move, and the loss does not fall."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_argument
from halfstep.doctor.record.standstill import standstill
from halfstep.doctor.record.trials import Trials, Variation
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.standstill import Standstill
    from halfstep.doctor.record.static import OptimizerFacts
    from halfstep.doctor.record.trials import Trial

_CODE = "LEARNING_RATE_TOO_LOW"
_MOVES = 1e-3  # of the weights' norm, in all steps together, at one rate
_MOVES_ON_SCHEDULE = 3e-3  # the same, at the rates of a schedule, of which few are sampled
_TRIED = 3e-2  # the same, if steps at a higher rate are tried
_FEWEST_TRIED = 100  # steps: a shorter run may only be a first look
_SLOPE = 1e-4  # of a weight's norm: the gradient is not what is too small
_GOOD = 1e-3  # a step's usual part of a weight's norm
_TIMES = 30.0
_BETTER = 5.0  # times
_GAINS = 0.1  # of the loss


def judge(evidence: Evidence) -> Finding | None:
    """Find an optimizer of new weights whose steps are too short for what they should learn."""
    for number, optimizer in enumerate(evidence.static.optimizers):
        found = standstill(evidence.numbers, evidence.samples, number, optimizer.steps)
        if found is None or found.slope < _SLOPE:
            continue
        rates = found.rates
        highest = rates[-1] if rates[-1] > rates[0] else None
        least = _MOVES if highest is None else _MOVES_ON_SCHEDULE
        # A schedule that falls may have frozen the weights on purpose.
        if rates == sorted(rates) and found.path <= least:
            return _finding(optimizer, found, highest)
        trial = next((each for each in evidence.of(Trials).found if each.code == _CODE), None)
        if trial is not None and _is_better(trial):
            return _tried(optimizer, found, trial)
    return None


def _trial(evidence: Evidence) -> tuple[Variation, Variation] | None:
    """Return steps at the highest rate so far, and at a much higher one."""
    if len(evidence.static.optimizers) != 1:  # The weights may have been trained before.
        return None
    steps = evidence.static.optimizers[0].steps
    found = standstill(evidence.numbers, evidence.samples, 0, steps)
    if found is None or found.slope < _SLOPE or found.path > _TRIED or steps < _FEWEST_TRIED:
        return None
    rate = max(found.rates)
    return (Variation(rate=rate), Variation(rate=_higher(found))) if rate > 0 else None


def _higher(found: Standstill) -> float:
    """Return a much higher rate, which moves the weights by far more than usual steps do."""
    return max(found.rates) * _TIMES * max(1.0, _GOOD / median(found.updates.values()))


def _is_better(trial: Trial) -> bool:
    """Tell whether only the steps at the higher rate make the loss fall."""
    if trial.note:
        return False
    gain, better = trial.first - trial.with_cause, trial.first - trial.without
    return better > max(_BETTER * gain, _GAINS * abs(trial.first))


def _tried(optimizer: OptimizerFacts, found: Standstill, trial: Trial) -> Finding:
    rate, higher = max(found.rates), _higher(found)
    tried = (
        f"{trial.steps} more steps on the last batches at {rate:.2g} bring the loss from "
        f"{trial.first:.4g} to {trial.with_cause:.4g}; at {higher:.2g}, to "
        f"{trial.without:.4g}"
    )
    return Finding(
        summary=f"{optimizer.steps} steps at a learning rate of {rate:.2g} or less move the "
        f"weights by {found.path:.1%} of their norm in all, and teach little: the loss is "
        f"{found.course[0]:.4g} at first and {found.course[1]:.4g} at the end",
        facts=(tried,),
        change=(f"+ # a higher learning rate; {higher:.1g}, for example, was tried",),
        confidence=LIKELY,
        site=optimizer.site,
    )


def _finding(optimizer: OptimizerFacts, found: Standstill, highest: float | None) -> Finding:
    course, updates, slope = found.course, [*found.updates.values()], found.slope
    facts = (
        f"no sampled step changes them by more than {max(updates):.1e}; 1e-3 is usual",
        f"the gradients are not small: their norm is {slope:.1e} of that of the weights",
    )
    losses = f"the loss is {course[0]:.4g} at first and {course[1]:.4g} at the end"
    if highest is not None:  # A longer run may still come to a higher rate.
        return Finding(
            summary=f"in all {optimizer.steps} steps, the schedule gives a learning rate of "
            f"{highest:.2g} at most, so a step changes the weights by {max(updates):.1e} of their "
            f"norm or less, and teaches nothing: {losses}",
            facts=facts,
            change=("+ # a shorter warm-up or a higher peak in the schedule of the learning rate",),
            confidence=POSSIBLE,
            site=optimizer.site,
        )
    usual, rate = median(updates), optimizer.settings.get("lr")
    better = float(rate) * _GOOD / usual if isinstance(rate, float | int) else 0.0
    made, names = optimizer.made_by, optimizer.arguments
    position = names.index("lr") if "lr" in names else None
    changed = with_argument(made, optimizer.kind, "lr", f"{better:.0e}", position=position)
    return Finding(
        summary=f"at a learning rate of {rate:g}, a step changes the weights by {usual:.1e} of "
        f"their norm, so {optimizer.steps} steps teach nothing: {losses}",
        facts=facts,
        change=(f"- {made}", f"+ {changed}")
        if changed and changed != made
        else (f"- lr={rate:g}", f"+ lr={better:.0e}"),
        confidence=LIKELY,
        site=optimizer.site,
    )


RULE = Rule(
    code=_CODE,
    name="a learning rate that is too low to learn",
    rows=(59,),
    citations=("tegg89/SRCNN-Tensorflow#24", "leela-zero/leela-zero#1728"),
    needs=frozenset({"numbers", "samples", "static"}),
    judge=judge,
    also=frozenset({Trials.signal}),
    harmless=True,
    trial=_trial,
)
