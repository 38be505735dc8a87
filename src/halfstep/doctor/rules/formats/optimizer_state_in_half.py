"""The optimizer's second moment is in a format that rounds it to 0, or keeps it from falling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from halfstep.doctor.replay.decays import StuckMoments
from halfstep.doctor.signals.values.moments import EmptyMoments
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

SHARE = 0.05


def judge(evidence: Evidence) -> Finding | None:
    """Find second moments in fp16 that are 0, or in a format that rounds beta2 to 1."""
    return _of_zeros(evidence) or _that_is_empty(evidence) or _that_never_falls(evidence)


def _that_is_empty(evidence: Evidence) -> Finding | None:
    """Find an average of squares in fp16, under any name, that is 0 for gradients that are not."""
    for each in evidence.of(EmptyMoments).states:
        if each.zeros < SHARE * each.count:
            continue
        optimizer = evidence.static.optimizers[each.optimizer]
        if set(optimizer.formats) != {"fp32"}:
            continue
        return Finding(
            summary=f"{optimizer.kind} keeps its state {each.state!r} in fp16, where the squares "
            f"of small gradients are 0: {each.zeros / each.count:.0%} of its examined elements are "
            "0 although their gradients are not, so an update divides by little more than eps",
            facts=("the parameters themselves are fp32", "the state has no negative numbers"),
            change=(
                "- state = torch.zeros_like(parameter, dtype=torch.float16)",
                "+ state = torch.zeros_like(parameter)",
            ),
            confidence=LIKELY,
            site=optimizer.site,
        )
    return None


def _of_zeros(evidence: Evidence) -> Finding | None:
    """Find fp16 parameters of a fused optimizer, which computes in fp32 and stores in fp16.

    Its eps is no problem, but the stored average of squares is 0 for small gradients. Each step
    then adds only its own square, so the update becomes larger than the learning rate.
    """
    for optimizer in evidence.static.optimizers:
        beta = optimizer.settings.get("beta2")
        if not (optimizer.steps and optimizer.settings.get("fused") and isinstance(beta, float)):
            continue
        states = [name for name, form in optimizer.state_formats.items() if form == "fp16"]
        state = next((name for name in states if "sq" in name), None)
        if state is None or set(optimizer.formats) != {"fp16"} or not 0 < beta < 1:
            continue
        lost = math.sqrt(FORMATS["fp16"].smallest_subnormal / 2 / (1 - beta))
        return Finding(
            summary=f"{optimizer.kind} keeps its state {state!r} in fp16, where it is 0 for "
            f"gradients below {lost:.1g}: updates of such elements become up to "
            f"{1 / math.sqrt(1 - beta):.2g} times too large",
            facts=(
                f"the square of a gradient, times 1 - {beta:g}, is below the numbers of fp16",
                "the parameters are fp16, so a fused optimizer makes its state in fp16, too",
            ),
            change=(
                "+ # keep the parameters in fp32 and use autocast; or update fp32 master weights:",
                '+ engine = halfstep.Engine(model, optimizer, recipe="o2")',
            ),
            confidence=LIKELY,
            site=optimizer.site,
        )
    return None


def _that_never_falls(evidence: Evidence) -> Finding | None:
    """Find a second moment of fp32 parameters in a format that rounds its factor to 1."""
    for each in evidence.of(StuckMoments).states:
        optimizer = evidence.static.optimizers[each.optimizer]
        factor: Any = round(each.factor, 6) or optimizer.settings.get("beta2")
        if not isinstance(factor, float) or not 0 < 1 - factor < FORMATS[each.format].eps / 4:
            continue
        return Finding(
            summary=f"{optimizer.kind} keeps its state {each.state!r} in {each.format}, in which "
            f"the factor {factor:g} rounds to 1: the average never falls, so updates stay small "
            "after a large gradient",
            facts=(
                (
                    f"1 - {factor:g} is less than half the distance from 1 to the next smaller "
                    f"{each.format} number"
                ),
                "in steps of a copy without gradients, it falls if its state is fp32",
                "the parameters themselves are fp32",
            ),
            change=(
                "- state = torch.zeros_like(parameter, dtype=torch.bfloat16)",
                "+ state = torch.zeros_like(parameter)",
            ),
            confidence=LIKELY,
        )
    return None


RULE = Rule(
    code="OPTIMIZER_STATE_IN_HALF",
    name="an optimizer's moments in half precision",
    rows=(28,),
    citations=("pytorch/torchtune#2254",),
    needs=frozenset({"static", "moments", "decays"}),
    judge=judge,
    explains=("GRADIENTS_VANISH", "LEARNING_RATE_TOO_HIGH"),
)
