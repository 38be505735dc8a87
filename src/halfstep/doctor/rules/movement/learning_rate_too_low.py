"""The learning rate is so low that the weights hardly move, and the loss does not fall."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_argument
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Sample
    from halfstep.doctor.record.static import OptimizerFacts

_FEWEST = 30  # steps
_MOVES = 1e-3  # of the weights' norm, in all steps together, at one rate
_MOVES_ON_SCHEDULE = 3e-3  # the same, at the rates of a schedule, of which few are sampled
_SLOPE = 1e-4  # of a weight's norm: the gradient is not what is too small
_FALLS = 0.9  # of the first losses
_NEAR_ZERO = 1e-3  # a loss
_GOOD = 1e-3  # a step's usual part of a weight's norm


def judge(evidence: Evidence) -> Finding | None:
    """Find an optimizer of new weights whose steps are too short for what they should learn."""
    for number, optimizer in enumerate(evidence.static.optimizers):
        course = evidence.numbers.course(number)
        samples = [
            each
            for each in evidence.samples
            if each.optimizer == number and each.gradient_zeros < 1 and each.relative_update
        ]
        rates = [each.learning_rate for each in evidence.numbers.steps if each.optimizer == number]
        if course is None or optimizer.steps < _FEWEST or not samples or rates != sorted(rates):
            continue  # A schedule that falls may have frozen the weights on purpose.
        # Weights that were loaded may be good already, and so may a loss near zero.
        if any(each.loaded for each in samples) or not course[1] >= _FALLS * course[0] > _NEAR_ZERO:
            continue
        steps = {
            iteration: [each for each in samples if each.iteration == iteration]
            for iteration in sorted({each.iteration for each in samples})
        }
        updates = {place: _whole(each, "relative_update") for place, each in steps.items()}
        slope = median(_whole(each, "relative_gradient") for each in steps.values())
        highest = rates[-1] if rates[-1] > rates[0] else None
        least = _MOVES if highest is None else _MOVES_ON_SCHEDULE
        if _path(updates, optimizer.steps) <= least and slope >= _SLOPE:
            return _finding(optimizer, course, [*updates.values()], slope, highest)
    return None


def _path(updates: dict[int, float], steps: int) -> float:
    """Return the length of all steps together; each is as long as the longer sample beside it."""
    first, last = min(updates), max(updates)
    between = sum((b - a) * max(updates[a], updates[b]) for a, b in pairwise(updates))
    return first * updates[first] + between + max(1, steps - last) * updates[last]


def _whole(samples: list[Sample], name: str) -> float:
    """Return a relative size for all parameters together; one alone may be near 0."""
    norm = math.hypot(*(each.norm for each in samples))
    return math.hypot(*(getattr(each, name) * each.norm for each in samples)) / norm if norm else 0


def _finding(
    optimizer: OptimizerFacts,
    course: tuple[float, float],
    updates: list[float],
    slope: float,
    highest: float | None,
) -> Finding:
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
    code="LEARNING_RATE_TOO_LOW",
    name="a learning rate that is too low to learn",
    rows=(59,),
    citations=("tegg89/SRCNN-Tensorflow#24", "leela-zero/leela-zero#1728"),
    needs=frozenset({"numbers", "samples", "static"}),
    judge=judge,
    harmless=True,
)
