"""An operator returns inf or NaN, and no other rule explains it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find a step that applied inf or NaN, and the operator that made them."""
    bad = evidence.numbers.first_bad
    births = [each for each in evidence.births if each.culprit and each.phase_step == "training"]
    if bad is None or bad.skipped or not births:
        return None
    birth = births[0]
    exact = [each for each in evidence.replays if each.name == "fp32" and not each.note]
    comparison: tuple[str, ...] = ()
    if exact:
        comparison = (
            "the same step in fp32 is finite: the cause is the precision"
            if exact[0].finite
            else "the same step in fp32 is not finite either: the cause is not the precision but "
            "the data, the learning rate or the formula",
        )
    largest = [f"{each.largest:.4g}" for each in birth.inputs if each.largest is not None]
    return Finding(
        summary=f"in step {bad.iteration}, {birth.value} first appears in "
        f"{birth.op or 'the input'} ({birth.phase}), and the optimizer applies it to the weights",
        facts=(
            birth.appears,
            *comparison,
            *((f"largest inputs of the operator: {', '.join(largest)}",) if largest else ()),
        ),
        change=(
            "+ # inspect that batch and that line; until then, skip such steps:",
            "+ if torch.isfinite(loss) and torch.isfinite(norm): optimizer.step()",
        ),
        confidence=POSSIBLE,
        site=birth.user_site,
        module=birth.module,
    )


RULE = Rule(
    code="NOT_FINITE",
    name="inf or NaN from another cause",
    rows=(43, 49),
    citations=("pytorch/pytorch#160016",),
    needs=frozenset({"numbers", "births", "replays"}),
    judge=judge,
    symptom=True,
)
