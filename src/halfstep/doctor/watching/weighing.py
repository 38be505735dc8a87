"""Measures what the causes that may do no harm cost, after the run and before the diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.actions.measuring import Measuring
from halfstep.doctor.record.trials import Trial, Trials
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.replay.last_steps import LastSteps
from halfstep.doctor.rules import rules

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.signals.watched import Watched


def weighed(evidence: Evidence, watched: Watched) -> Evidence:
    """Return the evidence with a trial of each cause that names one and was found, or needs it.

    Args:
        evidence: The evidence of the run.
        watched: Has the last steps, and the optimizer that made them.
    """
    wanted = {
        rule.code: ways
        for rule in rules()
        if rule.trial is not None
        and rule.needs <= evidence.signals
        and (Trials.signal in rule.also or rule.read(evidence) is not None)
        and (ways := rule.trial(evidence)) is not None
    }
    if not wanted:
        return evidence
    taken = _last_steps(evidence, watched)
    found = tuple(
        Trial(code, note=taken) if isinstance(taken, str) else taken.compare(code, *ways)
        for code, ways in wanted.items()
    )
    return replace(
        evidence,
        signals=evidence.signals | {Trials.signal},
        others={**evidence.others, Trials.signal: Trials(found)},
    )


def _last_steps(evidence: Evidence, watched: Watched) -> LastSteps | str:
    """Return the last steps, or why they cannot be taken again."""
    optimizers = [
        (number, each)
        for number, each in watched.registry.optimizers.alive().items()
        if watched.registry.optimizer(each).steps
    ]
    if len(optimizers) != 1:
        return "several optimizers made the last steps" if optimizers else "the optimizer is gone"
    if evidence.environment.processes > 1:
        return "several processes made the last steps together"
    ((number, optimizer),) = optimizers
    recent = [(made, entries) for made, entries in watched[Measuring].recent if entries]
    if not recent:
        return "the last steps were not recorded"
    numbers = [each for each in evidence.numbers.steps if each.optimizer == number][-len(recent) :]
    norms = [each.gradient_norm for each in numbers if each.gradient_norm is not None]
    rates = [each.learning_rate for each in numbers if each.learning_rate > 0]
    names = watched.registry.names()
    return LastSteps(
        [
            watched[Investigation].replayer(entries, names, made, "the last steps")
            for made, entries in recent
        ],
        optimizer,
        max(norms, default=None),
        rates[-1] if rates else 0.0,
    )
