"""Activations exceed the maximum of fp16 in step after step; bf16 and fp32 can hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_LIMIT = 65504.0
_OPERATORS = {
    "aten.mm",
    "aten.addmm",
    "aten.bmm",
    "aten.baddbmm",
    "aten.matmul",
    "aten.linear",
    "aten.convolution",
    "aten.mkldnn_rnn_layer",
    "aten.mul",
    "aten.add",
    "aten._to_copy",
    "aten.div",
    "aten.native_dropout",
}
_NORMALISE = ("+ # normalise the inputs before the model: (inputs - mean) / std",)
_CHANGE = (
    "- torch.autocast(device_type, dtype=torch.float16)",
    "+ torch.autocast(device_type, dtype=torch.bfloat16)",
    "+ # or compute this layer in fp32, with its inputs cast by .float():",
    "+ with torch.autocast(device_type, enabled=False):",
)
FIRST = 3
SHARE = 0.5
SKIPS = 4
GROWN = 2.0


def judge(evidence: Evidence) -> Finding | None:
    """Find an overflow of fp16 in a product, a sum or a cast of the forward pass.

    A division by the overflow may turn it into 0, so that the step is finite but differs from the
    step in fp32. Otherwise, the overflow must be persistent: it occurs from the first steps on, or
    no step is finite after the first bad step, although the parameters have not grown much.
    """
    for birth in evidence.lost():
        if birth.op not in _OPERATORS or birth.kind != "inf" or birth.output.format != "fp16":
            continue
        if birth.exact is None or birth.exact <= _LIMIT or birth.feeds_softmax:
            continue
        if not birth.culprit:
            return _divided(birth, evidence)
        if not any(each.name == "fp32" and each.finite for each in evidence.replays):
            continue
        if _from_the_start(evidence, birth):
            when = (
                "in evaluation" if birth.phase_step == "evaluation" else "from the first steps on"
            )
        elif _for_good(evidence):
            when = f"from step {evidence.growth.iteration} on"
        else:
            continue
        is_batch = birth.op == "aten._to_copy" and birth.inputs[0].name == "batch"
        return Finding(
            summary=f"{birth.reach} {when}; fp16 turns them into inf, because its maximum is "
            f"{_LIMIT:g}" + ("" if is_batch else "; bf16 and fp32 can hold them"),
            facts=(
                birth.appears,
                "the same step in fp32 is finite",
            ),
            change=_NORMALISE if is_batch else _change(birth, evidence),
            confidence=LIKELY,
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(birth: Birth, evidence: Evidence) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else ""
    if birth.op != "aten._to_copy" or ".half()" not in line:
        return _CHANGE
    # The program itself casts to fp16. Without the cast, autocast to fp16 would overflow later.
    if not any(event.facts["autocast"] == "fp16" for _, event in evidence.loop.of("forward")):
        return _CHANGE  # The next layer may have fp16 parameters.
    return f"- {line}", f"+ {line.replace('.half()', '')}", *_CHANGE[:2]


def _divided(birth: Birth, evidence: Evidence) -> Finding:
    return Finding(
        summary=f"{birth.reach}; fp16 turns them into inf, because its maximum is {_LIMIT:g}; "
        "division by inf gives 0",
        facts=(birth.appears, "the loss or the gradients of the same step in fp32 differ"),
        change=_change(birth, evidence),
        confidence=LIKELY,
        site=birth.user_site,
        module=birth.module,
    )


def _from_the_start(evidence: Evidence, birth: Birth) -> bool:
    if birth.phase_step == "evaluation":
        return evidence.evaluation.bad >= SHARE * evidence.evaluation.calls
    steps, bad = evidence.numbers.steps, evidence.numbers.first_bad
    if not steps:  # The loop skips bad steps itself, and has made no step.
        return any(each.drops >= SKIPS for each in evidence.own_scales)
    if bad is None or evidence.growth.factor > GROWN:
        return False
    if sum(not each.skipped for each in steps if each.iteration < bad.iteration) >= FIRST:
        return False
    # Without a scaler, the first bad step makes the parameters non-finite permanently.
    if not evidence.numbers.skips:
        return True
    return evidence.numbers.skips >= SHARE * len(steps)


def _for_good(evidence: Evidence) -> bool:
    """Return whether all steps from the first bad one on are bad, with little parameter growth."""
    numbers = evidence.numbers
    bad = numbers.first_bad
    if bad is None or evidence.growth.iteration < 0 or evidence.growth.factor > GROWN:
        return False
    if not bad.skipped:
        return True
    return numbers.longest_run_of_skips >= SKIPS and numbers.steps[-1].skipped


RULE = Rule(
    code="ACTIVATIONS_TOO_LARGE",
    name="activations exceed the range of fp16",
    rows=(37,),
    citations=("huggingface/transformers#10956", "huggingface/transformers#9295"),
    needs=frozenset(
        {"births", "replays", "numbers", "evaluation", "growth", "loop", "own_scales", "precision"}
    ),
    judge=judge,
    explains=("NORM_STATISTICS_POISONED", "GRADIENTS_UNDERFLOW", "GRADIENTS_VANISH"),
)
