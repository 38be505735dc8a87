"""The learning-rate schedule advances even if the optimizer step was skipped."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Loop, OptimizerFacts

FEWEST = 2
SHARE = 0.02
# Learning rates computed from the iteration number are common, and harmless with few skips.
FEWEST_BY_HAND = 3
SHARE_BY_HAND = 0.1


def judge(evidence: Evidence) -> Finding | None:
    """Find a scheduler that advances after every step, including skipped steps."""
    for number, optimizer in enumerate(evidence.static.optimizers):
        moves = evidence.loop.count("schedule", optimizer=number)
        made = optimizer.steps + optimizer.skipped
        if moves == 0:
            found = _by_hand(evidence, number)
            if found is not None:
                return found
        if moves == 0 or 2 * moves < made:  # no scheduler, or one call per epoch
            continue
        drift = _drift(evidence, number, optimizer)
        if drift < FEWEST or drift < SHARE * moves:
            continue
        event = next(
            event for _, event in evidence.loop.of("schedule") if event.facts["optimizer"] == number
        )
        return Finding(
            summary=f"the schedule is {counted(drift, 'step')} ahead of the optimizer: "
            "scheduler.step() was called after steps that the scaler had skipped",
            facts=(
                f"{drift} of {counted(moves, 'scheduler step')} followed a skipped optimizer step",
                f"{optimizer.kind} made {counted(made - drift, 'step')}",
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


def _by_hand(evidence: Evidence, number: int) -> Finding | None:
    """Find a learning rate that the loop itself sets for each step, including skipped steps."""
    steps = [each for each in evidence.numbers.steps if each.optimizer == number]
    pairs = [
        (step, after) for step, after in pairwise(steps) if after.iteration - step.iteration == 1
    ]
    moves = [step for step, after in pairs if step.learning_rate != after.learning_rate]
    drift = sum(step.skipped for step in moves)
    if 2 * len(moves) < len(pairs) or drift < max(FEWEST_BY_HAND, SHARE_BY_HAND * len(pairs)):
        return None
    return Finding(
        summary="the loop sets the learning rate for each step, and changed it after "
        f"{drift} steps that the scaler skipped: the schedule is ahead of the optimizer",
        facts=(f"{drift} of {len(moves)} changes of the learning rate came after a skipped step",),
        change=(
            "+ before = scaler.get_scale()",
            "  scaler.update()",
            "+ steps_made += scaler.get_scale() >= before  # compute the learning rate from this",
        ),
        confidence=POSSIBLE,
    )


def _drift(evidence: Evidence, number: int, optimizer: OptimizerFacts) -> int:
    if not optimizer.skips_itself:
        return evidence.loop.count("schedule", optimizer=number, skipped=True)
    # The optimizer skips steps on the device, so the events do not show which steps it skipped.
    return evidence.numbers.skips if _always_moves(evidence.loop, number) else 0


def _always_moves(loop: Loop, number: int) -> bool:
    stepping = [shape for shape in loop.shapes if shape.complete and shape.of("scaler step")]
    return all(
        any(each.facts["optimizer"] == number for each in shape.of("schedule"))
        for shape in stepping[:-1] or stepping
    )


RULE = Rule(
    code="SCHEDULE_MOVES_OVER_SKIPS",
    name="a scheduler that advances on skipped steps",
    rows=(10,),
    citations=("pytorch/pytorch#44511", "huggingface/transformers#11106"),
    needs=frozenset({"loop", "static", "numbers"}),
    judge=judge,
    harmless=True,
)
