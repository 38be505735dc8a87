"""The learning rate is too high: the loss grows, in every format, and may overflow in the end."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.contributions import GradientLedger
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Replay, StepNumbers

GROWTH = 30.0
LOOK_BACK = 8
STILL_ABOVE = 2.0
# Successful training does not increase the norm of the parameters by these factors.
FACTOR = 8.0
FACTOR_A_STEP = 1.05
FACTOR_WITH_LOSS = 2.0  # if the loss in fp32 grew too
EXTREME = 1e4
# Losses that are added up in a step, and not divided by their number.
_ROSE = 8.0  # times the largest of the first losses, in the median of some in a row
_IN_A_ROW = 4
_SAME = (0.8, 2.0)  # times the first losses: nothing was learned, and no term was added
_FEWEST = 16


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss or parameters that grew before the first non-finite step, or until the end."""
    bad = evidence.numbers.first_bad
    if _has_no_minimum(evidence):
        return None
    found = _by_last_losses(evidence) if bad is None else _by_loss(evidence, bad)
    return found or _by_parameters(evidence) or _by_sum(evidence)


def _has_no_minimum(evidence: Evidence) -> bool:
    """Return whether a binary loss fell below 0, where its targets let it fall without limit."""
    below = any(each.loss is not None and each.loss < 0 for each in evidence.numbers.steps)
    return below and not all(each.is_of_probabilities for each in evidence.targets)


def _by_sum(evidence: Evidence) -> Finding | None:
    """Find sums of losses whose steps make the loss rise, and teach nothing in the end.

    Only for SGD, whose steps grow with the gradients. At the end, the loss is as at first.
    """
    steps = evidence.numbers.steps
    if not steps or evidence.numbers.first_bad is not None:
        return None
    number = steps[-1].optimizer
    if evidence.static.optimizer(number).kind != "SGD":
        return None
    ledger = evidence.of(GradientLedger).optimizers
    passes = next((each for each in ledger if each.number == number), None)
    windows = passes.windows if passes is not None else {}
    steps = tuple(each for each in steps if each.optimizer == number and each.loss is not None)
    losses = [each.loss for each in steps if each.loss is not None]
    if len(windows) != 1 or min(windows) < 2 or len(losses) < _FEWEST or min(losses) < 0:
        return None
    smooth = [median(losses[at : at + _IN_A_ROW]) for at in range(len(losses) - _IN_A_ROW + 1)]
    first, last = smooth[0], median(losses[-len(losses) // 4 :])
    is_same = _SAME[0] * first <= last <= _SAME[1] * first
    if max(smooth) < _ROSE * max(losses[:_IN_A_ROW]) or not is_same:
        return None
    peak, count = steps[smooth.index(max(smooth))], min(windows)
    line = passes.backward if passes is not None else None
    return Finding(
        summary=f"{_at(peak)}, the loss rose from {first:.3g} to {max(smooth):.3g}, and "
        f"{counted(len(losses), 'step')} taught nothing: it is {last:.3g} at the end. Each step "
        f"adds up the gradients of {count} backward passes",
        facts=(f"with the mean of the {count} losses, SGD's steps are {count} times shorter",),
        change=(
            f"- {line.text if line else 'loss.backward()'}",
            f"+ (loss / {count}).backward()",
            f"+ # or, where the loop divides it already, lr={peak.learning_rate / 10:g}",
        ),
        confidence=POSSIBLE,
        site=line,
        ruled_out=("overflow, because every loss was finite",),
    )


def _by_loss(evidence: Evidence, bad: StepNumbers) -> Finding | None:
    """Find a loss that grew over several steps before it became non-finite."""
    losses = [
        abs(step.loss)
        for step in evidence.numbers.steps
        if step.iteration < bad.iteration
        and step.optimizer == bad.optimizer  # Another one may have trained for another task.
        and step.loss is not None
        and math.isfinite(step.loss)
    ]
    if len(losses) < 2:
        return None
    recent = losses[-LOOK_BACK:]
    if recent[-1] < GROWTH * min(losses) or recent[-1] < recent[0]:
        return None
    replays = [each for each in evidence.replays if each.name == "fp32" and not each.note]
    exact: tuple[str, ...] = ()
    if replays:
        exact = (
            "the same step in fp32 is finite, but the loss had grown before the overflow"
            if replays[0].finite
            else "the same step in fp32 is not finite either",
        )
    return Finding(
        summary=f"{_at(bad)}, the loss grew from {min(losses):.3g} to {recent[-1]:.3g} and then "
        "became non-finite",
        facts=(
            f"losses before step {bad.iteration}: " + ", ".join(f"{each:.3g}" for each in recent),
            *exact,
        ),
        change=_change(evidence, bad),
        confidence=LIKELY,
        ruled_out=("precision, because the loss grew before any overflow",),
    )


def _by_last_losses(evidence: Evidence) -> Finding | None:
    """Find finite losses that grew with the parameters and end above the first loss."""
    numbers, growth, exact = evidence.numbers, evidence.growth, evidence.precision.exact_loss
    losses = [each.loss for each in numbers.steps if each.loss is not None]
    if len({each.optimizer for each in numbers.steps}) != 1 or len(losses) <= LOOK_BACK:
        return None
    first, largest, last = losses[0], max(losses), losses[-LOOK_BACK:]
    if exact is None or min(losses) < 0 or growth.factor < FACTOR:
        return None
    if largest < GROWTH * first or min(median(last), exact) < STILL_ABOVE * first:
        return None
    return Finding(
        summary=f"{_at(numbers.steps[-1])}, the loss grew from {first:.3g} to {largest:.3g} "
        f"and the parameters became {growth.factor:.3g} times larger",
        facts=(
            f"last losses: {', '.join(f'{each:.3g}' for each in last)}",
            f"loss of the last step in fp32: {exact:.3g}",
        ),
        change=_change(evidence, numbers.steps[-1]),
        confidence=LIKELY,
        ruled_out=("overflow, because every loss was finite",),
    )


def _by_parameters(evidence: Evidence) -> Finding | None:
    """Find parameters that became many times larger in a few steps and make a step non-finite."""
    growth = evidence.growth
    steps = [each for each in evidence.numbers.steps if each.iteration < growth.iteration]
    made = sum(not each.skipped for each in steps)
    replays = {each.name: each for each in evidence.replays if each.iteration == growth.iteration}
    larger = _larger_loss(steps, replays.get("fp32"))
    least = FACTOR_WITH_LOSS if larger else FACTOR
    if not made or growth.factor < max(least, FACTOR_A_STEP**made):
        return None
    smaller = replays.get("first size")
    if smaller is None or not _is_better(smaller, replays.get("plain")):
        return None
    worst = max(growth.parameters, key=lambda each: each.after if math.isfinite(each.after) else 0)
    exact = replays.get("fp32")
    what = "the same step" if smaller.finite else "the loss of the same step"
    return Finding(
        summary=f"in {counted(made, 'step')} {_at(steps[-1])}, the parameters became "
        f"{growth.factor:.3g} times larger",
        facts=(
            f"the norm of {worst.parameter} went from {worst.before:.3g} to {worst.after:.3g}",
            f"{what} is finite after scaling the parameters back to their initial norms",
            *larger,
        ),
        change=_change(evidence, steps[-1], growth.factor),
        confidence=LIKELY,
        ruled_out=("precision, although the step is finite in fp32: the weights have diverged",)
        if exact is not None and exact.finite
        else (),
    )


def _larger_loss(steps: list[StepNumbers], exact: Replay | None) -> tuple[str, ...]:
    """Return a fact if the bad step's loss in fp32 is far above the losses before it."""
    losses = [each.loss for each in steps if each.loss is not None and each.loss > 0]
    if exact is None or exact.loss is None or not losses or not math.isfinite(exact.loss):
        return ()
    if exact.loss < GROWTH * min(losses):
        return ()
    fact = (
        f"in fp32, the loss of the same step is {exact.loss:.3g}; the lowest loss before it was "
        f"{min(losses):.3g}"
    )
    return (fact,)


def _is_better(smaller: Replay, plain: Replay | None) -> bool:
    """Return whether smaller parameters make the step finite, or at least the loss."""
    lost = plain is not None and plain.loss is not None and not math.isfinite(plain.loss)
    return smaller.finite or (lost and smaller.loss is not None and math.isfinite(smaller.loss))


def _at(step: StepNumbers) -> str:
    rate = step.learning_rate
    return "at this learning rate" if math.isnan(rate) else f"at a learning rate of {rate:g}"


def _change(evidence: Evidence, step: StepNumbers, factor: float = 1.0) -> tuple[str, ...]:
    """Return a lower learning rate.

    Args:
        evidence: The evidence.
        step: The step whose learning rate was too high.
        factor: How many times larger the parameters became in few steps.
    """
    rate = step.learning_rate
    if math.isnan(rate):
        return ("+ # a tenth of the learning rate in the lines that update the weights; or warmup",)
    optimizer = evidence.static.optimizer(step.optimizer)
    # An update is proportional to the rate, so a tenth is far from enough after an extreme growth.
    lower = rate / (10 if factor < EXTREME else 10 ** (2 + math.floor(math.log10(factor))))
    change: tuple[str, ...] = (f"- lr={rate:g}", f"+ lr={lower:g}  # or use warmup")
    decay = optimizer.settings.get("weight_decay")
    if isinstance(decay, float) and lower * decay > 0.1:  # Either factor may be the wrong one.
        change += (
            f"- weight_decay={decay:g}",
            f"+ weight_decay={decay / 1000:g}  # lr * decay << 1",
        )
    return change


RULE = Rule(
    code="LEARNING_RATE_TOO_HIGH",
    name="training diverged",
    rows=(49,),
    citations=("facebookresearch/mae#42", "lucidrains/denoising-diffusion-pytorch#102"),
    needs=frozenset({"numbers", "replays", "growth", "precision", "static", "targets"}),
    also=frozenset({GradientLedger.signal}),
    judge=judge,
    explains=(
        "ACTIVATIONS_TOO_LARGE",
        "ATTENTION_LOGITS_OVERFLOW",
        "EPS_ABOVE_GRADIENTS",
        "EXP_OVERFLOW",
        "GRADIENTS_VANISH",
        "INPUT_LOST",
        "SCHEDULE_MOVES_OVER_SKIPS",
        "UPDATE_NOT_FINITE",
    ),
)
