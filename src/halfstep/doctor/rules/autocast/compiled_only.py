"""Compiled code gives inf or NaN where the same step in eager mode does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Replay


def judge(evidence: Evidence) -> Finding | None:
    """Find a step whose compiled replay is not finite although its eager replay is finite."""
    plain = {each.iteration: each for each in evidence.replays if each.name == "plain"}
    for eager in evidence.replays:
        mine = plain.get(eager.iteration)
        if eager.name != "eager" or eager.note or not eager.finite or mine is None or mine.finite:
            continue
        return Finding(
            summary=f"step {eager.iteration} is finite in eager mode but not when "
            "compiled: the compiled graph computes different values",
            facts=(f"loss: {_loss(mine)} when compiled, {_loss(eager)} in eager mode",),
            change=(
                "+ TORCHINDUCTOR_EMULATE_PRECISION_CASTS=1 python ...",
                "+ # and TORCHINDUCTOR_NAN_ASSERTS=1 to find the kernel",
            ),
        )
    return None


def _loss(replay: Replay) -> str:
    return "none" if replay.loss is None else f"{replay.loss:.4g}"


RULE = Rule(
    code="COMPILED_ONLY",
    name="only the compiled graph gives NaN",
    rows=(48,),
    citations=("pytorch/pytorch#168126", "pytorch/pytorch#183605"),
    needs=frozenset({"replays"}),
    judge=judge,
)
