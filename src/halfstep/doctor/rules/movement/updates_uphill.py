"""The updates go along the gradient of the loss, and not against it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_changed_argument
from halfstep.doctor.signals.movement.directions import OwnDirections
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Sample

_FEWEST = 3  # sampled steps
_ALONG = 0.1  # cosine
_RISES = 1.2  # times
_LOSSES = {
    *("cross_entropy", "crossentropy", "nll_loss", "nll", "mse_loss", "mse", "l1_loss", "l1"),
    *("binary_cross_entropy", "bce", "binary_cross_entropy_with_logits", "bcewithlogits"),
    *("smooth_l1_loss", "smoothl1", "huber_loss", "huber", "kl_div", "kldiv", "ctc_loss", "ctc"),
}


def judge(evidence: Evidence) -> Finding | None:
    """Find an optimizer, or a loop without one, all of whose updates go uphill."""
    return _of_optimizer(evidence) or _of_loop(evidence.of(OwnDirections))


def _of_loop(own: OwnDirections) -> Finding | None:
    """Find updates of the loop that make an error larger; a score may be meant to rise."""
    if own.steps < _FEWEST or not own.least >= _ALONG or not own.is_error:
        return None
    if own.last <= _RISES * own.first:
        return None
    rise = "" if math.isnan(own.first) else f", so it rises from {own.first:.3g} to {own.last:.3g}"
    return Finding(
        summary="each update that the loop makes goes along the gradient of the loss, not against "
        f"it{rise}",
        facts=(f"in {own.steps} steps, the cosine of both is at least {own.least:.2f}",),
        change=("+ # subtract the gradient times the learning rate from each weight",),
        confidence=LIKELY,
        site=own.site,
    )


def _of_optimizer(evidence: Evidence) -> Finding | None:
    """Find the only optimizer of a program, if all its sampled updates go uphill.

    With several optimizers, one may be an adversary; and a loss that rises may be a score, unless
    no optimizer maximizes it.
    """
    if len({each.optimizer for each in evidence.numbers.steps}) != 1:
        return None
    number = evidence.numbers.steps[0].optimizer
    samples = [each for each in evidence.samples if each.optimizer == number and each.uphill]
    course = evidence.numbers.course(number)
    steps = {each.iteration: _Angle() for each in samples}
    for each in samples:
        steps[each.iteration].add(each)
    if course is None or len(steps) < _FEWEST:
        return None
    first, last = course
    least = min(each.cosine for each in steps.values())
    if least < _ALONG or not last > _RISES * first > 0:
        return None
    optimizer = evidence.static.optimizers[number]
    maximizes = bool(optimizer.settings.get("maximize"))
    if (maximizes and not _has_known_loss(evidence)) or optimizer.trains_no_model:
        return None
    made = optimizer.made_by
    changed = with_changed_argument(made, optimizer.kind, "maximize", "False")
    change: tuple[str, ...] = (f"- {made}", f"+ {changed}") if maximizes and changed else ()
    return Finding(
        summary=f"each update of {optimizer.kind} goes along the gradient of the loss, not against "
        f"it, so the loss rises from {first:.3g} to {last:.3g}"
        + (": maximize=True" if maximizes else ""),
        facts=(
            f"in each sampled step, the cosine of both is at least {least:.2f}",
            "with gradient descent, it is negative",
        ),
        change=change
        or (f"+ # in step() of {optimizer.kind}: parameter.add_(gradient, alpha=-lr)",),
        confidence=LIKELY,
        site=optimizer.site,
    )


class _Angle:
    """The angle between update and gradient of all sampled parameters together.

    In a network that is driven uphill, layers saturate, and their gradients no longer matter.
    """

    def __init__(self) -> None:
        self._product = self._update = self._gradient = 0.0

    def add(self, sample: Sample) -> None:
        update, gradient = (
            sample.relative_update * sample.norm,
            sample.relative_gradient * sample.norm,
        )
        self._product += sample.uphill * update * gradient
        self._update, self._gradient = (
            math.hypot(self._update, update),
            math.hypot(self._gradient, gradient),
        )

    @property
    def cosine(self) -> float:
        size = self._update * self._gradient
        return self._product / size if size else 0.0


def _has_known_loss(evidence: Evidence) -> bool:
    """Return whether the only loss of the program is one that torch computes, without a sign."""
    return any(each.name.lower().removesuffix("loss") in _LOSSES for each in evidence.calls)


RULE = Rule(
    code="UPDATES_UPHILL",
    name="updates along the gradient, not against it",
    rows=(49,),
    citations=("FluxML/Flux.jl#1290", "Yorko/mlcourse.ai#640"),
    needs=frozenset({"calls", "numbers", "own directions", "samples", "static"}),
    judge=judge,
    explains=("INPUT_LOST", "LEARNING_RATE_TOO_HIGH"),
)
