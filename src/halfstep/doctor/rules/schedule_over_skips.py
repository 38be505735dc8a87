"""The learning-rate schedule moves on over steps that were skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.evidence import Evidence, Loop, OptimizerFacts

FEWEST = 2
SHARE = 0.02


def judge(evidence: Evidence) -> Finding | None:
    """Find a scheduler that moves every step, and moved where no step was made."""
    for number, optimizer in enumerate(evidence.static.optimizers):
        moves = evidence.loop.count("schedule", optimizer=number)
        made = optimizer.steps + optimizer.skipped
        if moves == 0 or 2 * moves < made:  # By the epoch, or of another optimizer.
            continue
        drift = _drift(evidence, number, optimizer)
        if drift < FEWEST or drift < SHARE * moves:
            continue
        event = next(
            event for _, event in evidence.loop.of("schedule") if event.facts["optimizer"] == number
        )
        return Finding(
            summary=f"the schedule is {drift} steps ahead of the optimizer: scheduler.step() was "
            "called after steps that the scaler had skipped",
            facts=(
                f"{drift} of {moves} moves of the scheduler followed a skipped step",
                f"{optimizer.kind} made {made - drift} steps",
            ),
            change=(
                "+ before = scaler.get_scale()",
                "  scaler.update()",
                "+ if scaler.get_scale() >= before:",
                f"      {event.site.text if event.site else 'scheduler.step()'}",
            ),
            confidence=LIKELY,
            site=event.site,
        )
    return None


def _drift(evidence: Evidence, number: int, optimizer: OptimizerFacts) -> int:
    if not optimizer.skips_itself:
        return evidence.loop.count("schedule", optimizer=number, skipped=True)
    # It skips on the device, after the loop has gone on.
    return evidence.numbers.skips if _always_moves(evidence.loop, number) else 0


def _always_moves(loop: Loop, number: int) -> bool:
    stepping = [shape for shape in loop.shapes if shape.complete and shape.of("scaler step")]
    return all(
        any(each.facts["optimizer"] == number for each in shape.of("schedule"))
        for shape in stepping[:-1] or stepping
    )


RULE = Rule(
    code="SCHEDULE_MOVES_OVER_SKIPS",
    name="a scheduler that moves on skipped steps",
    rows=(10,),
    citations=("pytorch/pytorch#44511", "huggingface/transformers#11106"),
    needs=frozenset({"loop", "static", "numbers"}),
    judge=judge,
)
