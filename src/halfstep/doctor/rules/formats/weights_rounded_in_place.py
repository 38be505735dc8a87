"""A model is cast to half precision between steps, for example to save it, which rounds weights."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import difference
from halfstep.doctor.record.trials import Variation
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, RoundTrip

OFTEN = 2
_FEWEST = 4  # steps
_TORCH = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a model that the loop casts to half precision, with steps before and after."""
    return _for_good(evidence) or _and_back(evidence) or _to_few_values(evidence)


def _for_good(evidence: Evidence) -> Finding | None:
    """Find a trained model that is cast between steps, and not cast back."""
    for each in evidence.casts:
        if not each.is_trained or not each.steps_before or not each.steps_after:
            continue
        total = each.steps_before + each.steps_after
        return Finding(
            summary=f"after step {each.steps_before}, the loop casts {each.kind} to {each.format} "
            f"in place, and continues to train: from then on, its weights are {each.format}",
            facts=(f"{each.steps_after} of {total} steps follow this cast of the model itself",),
            change=difference(each.text, _with_copy(each.text)),
            confidence=LIKELY,
            site=each.site,
        )
    return None


def _with_copy(text: str) -> str:
    """Return a statement that casts a module, changed so that it casts a copy."""
    return re.sub(r"([\w.]+)(\.(?:half|bfloat16|to)\()", r"copy.deepcopy(\1)\2", text, count=1)


def _and_back(evidence: Evidence) -> Finding | None:
    """Find a model that is cast to half precision and back."""
    for each in evidence.trips:
        between = each.steps_before > 0 and each.steps_after > 0
        if not between or not (each.is_trained or each.count >= OFTEN):
            continue
        if each.by_load:
            if each.count >= OFTEN:
                return _by_load(each)
            continue
        line = each.site.text if each.site is not None else "model.half()"
        digits = FORMATS[each.format].mantissa_bits
        return Finding(
            summary=f"{counted(each.count, 'time')}, the loop casts {each.kind} to {each.format} "
            f"in place and back to fp32: this rounds the weights to {digits + 1} significant bits, "
            "and the cast to fp32 does not bring the lost bits back",
            facts=(
                (
                    "an optimizer updates these weights, so small updates since the last cast are "
                    "lost"
                    if each.is_trained
                    else "no optimizer updates these weights; they may be an average of weights"
                ),
            ),
            change=(
                f"- {line}",
                f"+ # compute in {each.format}, and leave the weights as they are:",
                f"+ with torch.autocast(device_type, dtype={_TORCH[each.format]}):",
                "+ # or cast a copy: copy.deepcopy(model)",
            ),
            confidence=CERTAIN if each.is_trained else LIKELY,
            site=each.site,
        )
    return None


def _by_load(trip: RoundTrip) -> Finding:
    digits = FORMATS[trip.format].mantissa_bits
    return Finding(
        summary=f"{counted(trip.count, 'time')}, the loop loads weights in {trip.format} into the "
        f"fp32 {trip.kind} that it trains: each load rounds the weights to {digits + 1} "
        "significant bits, and small updates since the last one are lost",
        facts=("an optimizer updates these weights between the loads",),
        change=(
            *((f"  {trip.site.text}",) if trip.site else ()),
            "+ # load the weights in fp32, without a cast of the state between the steps",
        ),
        confidence=CERTAIN,
        site=trip.site,
    )


def _to_few_values(evidence: Evidence) -> Finding | None:
    """Find weights that have few values before each step, which the step moves apart."""
    for number, optimizer in enumerate(evidence.static.optimizers):
        samples = [each for each in evidence.samples if each.optimizer == number]
        rounded = [each for each in samples if each.few_values]
        names = {each.parameter for each in rounded}
        steps = {each.iteration for each in rounded}
        if len(steps) < _FEWEST:
            continue
        return Finding(
            summary=f"before a step of {optimizer.kind}, most elements of "
            f"{', '.join(sorted(names)[:3])} have one of few values, and each its own after it: "
            "the loop rounds the weights in place after the steps, so small updates never add up",
            facts=(f"so it was in {counted(len(steps), 'examined step')}",),
            change=(
                "+ # keep the weights in fp32, and round a copy of them in the forward pass, with",
                "+ # w + (rounded - w).detach(), so that the gradient reaches the fp32 weights",
            ),
            confidence=LIKELY,
            site=optimizer.site,
        )
    return None


def _trial(evidence: Evidence) -> tuple[Variation, Variation] | None:
    """Return steps with a rounding of the weights as often as the loop made it, and without."""
    for each in evidence.trips:
        if each.is_trained and each.steps_before > 0 and each.steps_after > 0:
            between = max(1, round(evidence.loop.iterations / each.count))
            return Variation(rounded=each.format, every=between), Variation()
    return None


RULE = Rule(
    code="WEIGHTS_ROUNDED_IN_PLACE",
    name="weights rounded by a cast between steps",
    rows=(29,),
    citations=("ultralytics/ultralytics#24731",),
    needs=frozenset({"trips", "casts", "samples", "static"}),
    judge=judge,
    harmless=True,
    trial=_trial,
    explains=(
        "OPERANDS_OF_TWO_FORMATS",
        "UPDATES_ROUNDED_AWAY",
        "WEIGHTS_LEFT_AFTER_EVALUATION",
    ),
)
