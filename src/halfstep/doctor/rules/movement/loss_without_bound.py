"""The loss has the wrong sign: it falls without limit, while the loss function in it rises."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.signals.movement.signs import LossSigns
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_FEWEST, _ENDS = 8, 3  # losses
_FALLS = 2.0  # times the size of the first losses


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss that falls far below 0, in a program with one optimizer, of new weights.

    With several optimizers, one may be an adversary; loaded weights may have to unlearn; and
    parameters of no model may be an attack.
    """
    numbers = {each.optimizer for each in evidence.numbers.steps}
    lines = evidence.of(LossSigns).lines
    if len(numbers) != 1 or not lines:
        return None
    number = numbers.pop()
    losses = [each.loss for each in evidence.numbers.steps if each.loss is not None]
    losses = [each for each in losses if math.isfinite(each)]
    optimizer = evidence.static.optimizer(number)
    if len(losses) < _FEWEST or optimizer.trains_no_model or optimizer.settings.get("maximize"):
        return None
    first, last = median(losses[:_ENDS]), median(losses[-_ENDS:])
    is_negative = max(losses) < 0
    # A loss that begins near 0 may fall as far without going on.
    size = abs(first) if is_negative else max(map(abs, losses[: len(losses) // 4]))
    if any(each.loaded for each in evidence.samples) or last > -_FALLS * size:
        return None
    line = lines[0]
    names = " and ".join(line.functions)
    is_log = line.functions == ("log-probabilities",)
    text = line.site.text if line.site else "loss.backward()"
    return Finding(
        summary=f"the loss falls without limit, from {first:.3g} to {last:.3g}, because "
        + (
            "it is the mean of log-probabilities: training makes the right classes unlikely"
            if is_log
            else f"{names} has a negative sign in it: training makes the errors larger"
        ),
        facts=(
            "the logarithm of a probability has no lower limit"
            if is_log
            else f"{names} is never negative, and has no upper limit",
            *(("all losses are negative from the first step on",) if is_negative else ()),
        ),
        change=(
            "+ # change the sign of this part of the loss: loss = -log_probabilities.mean()"
            if is_log
            else f"+ # change the sign of {names} in the loss, which is minimized",
            f"  {text}",
        ),
        confidence=LIKELY,
        site=line.site,
    )


RULE = Rule(
    code="LOSS_WITHOUT_BOUND",
    name="a loss that falls without limit",
    rows=(49,),
    citations=("nothinglo/Deep-Photo-Enhancer#57", "BUserName/Learning_to_diversify#1"),
    needs=frozenset({"numbers", "samples", "signs", "static"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH",),
)
