"""From evidence to a diagnosis: all rules read the evidence; causes hide their consequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.rules import rules
from halfstep.doctor.verdict import ORDER, Diagnosis, Verdict

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

SCALER_OFF = (
    "the loss scale was not checked, because PyTorch turns GradScaler('cuda') off without a GPU"
)


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the diagnosis of a program."""
    found = []
    explained: set[str] = set()
    symptoms: set[str] = set()
    harmful: set[str] = set()
    for rule in rules():
        finding = rule.read(evidence)
        if finding is not None:
            found.append(Verdict(rule.code, rule.name, rule.rows, rule.citations, finding))
            explained |= set(rule.explains)
            symptoms |= {rule.code} if rule.symptom else set()
            harmful |= {rule.code} if not (rule.symptom or rule.harmless) else set()
    if harmful:
        explained |= symptoms
    causes = [each for each in found if each.code not in explained]
    return Diagnosis(
        verdicts=tuple(sorted(causes, key=lambda each: ORDER.index(each.finding.confidence))),
        consequences=tuple(each.code for each in found if each.code in explained),
        headroom=_headroom(evidence),
        notes=_notes(evidence),
        unchecked=SCALER_OFF if evidence.environment.scaler_off else "",
    )


def _notes(evidence: Evidence) -> tuple[str, ...]:
    notes = {
        f"the step could not be replayed: {each.note}" for each in evidence.replays if each.note
    }
    if evidence.precision.note:
        notes.add(f"headroom is not known: {evidence.precision.note}")
    if "loop" in evidence.signals and not evidence.loop.iterations:
        notes.add("no optimizer made a step, so doctor could not judge the training")
    if evidence.environment.scaler_off:
        notes.add(
            "to check the loss scale without a GPU, write torch.amp.GradScaler('cpu') and "
            "torch.autocast('cpu', dtype=torch.float16); if fp16 is then too slow, train inside "
            "`with halfstep.cpu_half():`"
        )
    if evidence.environment.hold_back:
        notes |= {
            f"steps of {each.kind} are not held back; write {each.kind}(..., fused=True)"
            for each in evidence.static.optimizers
            if not each.skips_itself
        }
    return tuple(sorted(notes))


def _headroom(evidence: Evidence) -> str:
    precision = evidence.precision
    if precision.bits_to_overflow is None:
        return ""
    where = f" (in module {precision.largest_module})" if precision.largest_module else ""
    flushed = max((each.flushed for each in precision.agreements), default=0.0)
    return (
        f"headroom: the largest half-precision value{where} is {precision.bits_to_overflow:.1f} "
        f"bits below overflow; underflow sets at most {flushed:.1%} of a gradient to 0"
    )
