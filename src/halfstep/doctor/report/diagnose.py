"""Makes a diagnosis: all rules read the evidence, and causes hide their consequences."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.record import HALVES, from_json
from halfstep.doctor.record.order import lines_of, names
from halfstep.doctor.report.harm import weighed
from halfstep.doctor.report.imbalances import imbalances
from halfstep.doctor.report.listing import Listing
from halfstep.doctor.report.tried import with_attempt
from halfstep.doctor.rules import rules
from halfstep.doctor.signals.program.names import UserNames
from halfstep.doctor.verdict import ORDER, Diagnosis, Verdict
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.doctor.record import Evidence

_NEXT = (
    "if training still fails, run the program in fp32, on the same batches: if it fails there too, "
    "the cause is not the precision"
)
_NEXT_IN_FP32 = (
    "if training still fails, check the data, the loss function and the learning rate: nothing was "
    "computed in half precision, so the precision is not the cause"
)
_STEPS = ("step", "scaler step", "drop")
_MAKE_STEPS_BAD = {"losses", "numerics", "overflow"}
"""Topics whose causes make inf or NaN, so that a scaler skips steps."""
_AFTER_SKIPS = "SCHEDULE_MOVES_OVER_SKIPS"
_FAR = 32  # bits, which only bf16 has
_EXPLAINED = 0.01  # the share of a gradient from which the headroom says how little is lost
_NO_KERNEL = re.compile(
    r"not implemented for '(Half|BFloat16)'|could not create a primitive descriptor"
)
_USES = {
    "scaler": r"(?<![\w.])scaler(?=\.\w)",
    "optimizer": r"(?<![\w.])optimizer(?=\.\w|\)|,)",
    "loss": r"(?<![\w.])loss(?=\)?\.backward\()",
    "device": r"(?<=[(=])device_type(?=[,)])",
}
"""Patterns of the placeholder names in the changes that rules suggest, by kind of object.

Other code in these changes is copied from the program.
"""


def diagnose(evidence: Evidence) -> Diagnosis:
    """Return the diagnosis of a program and of the processes that it has started."""
    own = _diagnosis(evidence)
    children = [_diagnosis(from_json(each)) for each in evidence.children]
    if not children:
        return own
    verdicts = {each.code: each for each in own.verdicts}
    for number, child in enumerate(children):
        for verdict in child.verdicts:
            fact = f"in child process {number} of {len(children)}"
            finding = replace(verdict.finding, facts=(*verdict.finding.facts, fact))
            verdicts.setdefault(verdict.code, replace(verdict, finding=finding))
    consequences = {code for each in (own, *children) for code in each.consequences}
    checked = next((each for each in children if not each.unchecked), own)
    return Diagnosis(
        verdicts=_by_confidence(verdicts.values()),
        consequences=tuple(sorted(consequences - verdicts.keys())),
        headroom="" if verdicts else checked.headroom,
        notes=tuple(sorted({note for each in (own, *children) for note in each.notes})),
        unchecked="" if verdicts else checked.unchecked,
        advice="" if verdicts else checked.advice,
        before=own.before or checked.before,
    )


def _by_confidence(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    return tuple(sorted(verdicts, key=lambda each: ORDER.index(each.finding.confidence)))


def _diagnosis(evidence: Evidence) -> Diagnosis:
    known, lines = names(evidence.loop) | _device(evidence), lines_of(evidence.loop)
    listing = Listing(evidence)
    found = []
    explained: set[str] = set()
    symptoms: set[str] = set()
    harmless: set[str] = set()
    harmful: set[str] = set()
    for rule in rules():
        read = rule.read(evidence)
        finding = weighed(read, rule, evidence) if read is not None else None
        if isinstance(finding, str):
            harmless.add(finding)
        elif finding is not None:
            own = lines | {finding.site.text} if finding.site else lines
            finding = replace(finding, change=_renamed(finding.change, known, own))
            finding = with_attempt(finding, rule.code, evidence, listing)
            finding = replace(
                finding,
                summary=_with_user_names(finding.summary, evidence),
                facts=tuple(_with_user_names(each, evidence) for each in finding.facts),
            )
            found.append(Verdict(rule.code, rule.name, rule.rows, rule.citations, finding))
            explained |= set(rule.explains)
            symptoms |= {rule.code} if rule.symptom else set()
            is_harmful = not (rule.symptom or rule.harmless)
            harmful |= {rule.code} if is_harmful else set()
            explained |= {_AFTER_SKIPS} if is_harmful and rule.topic in _MAKE_STEPS_BAD else set()
    if harmful:
        explained |= symptoms
    causes = [each for each in found if each.code not in explained]
    minor = () if causes else imbalances(evidence)
    unchecked = ("" if causes else _unchecked(evidence)) or _off_without_gpu(evidence)
    return Diagnosis(
        verdicts=_by_confidence(causes),
        consequences=tuple(each.code for each in found if each.code in explained),
        headroom="" if causes else _headroom(evidence),
        notes=tuple(sorted({*_notes(evidence), *harmless, *minor})),
        unchecked=unchecked,
        advice="" if causes or unchecked or evidence.ending.kind else _advice(evidence),
        before=_before(evidence),
    )


def _device(evidence: Evidence) -> dict[str, str]:
    """Return the source code of the program's device type by the word "device", if it is known."""
    devices = evidence.environment.devices
    return {"device": f'"{devices[0]}"'} if len(devices) == 1 else {}


def _renamed(change: tuple[str, ...], known: dict[str, str], own: set[str]) -> tuple[str, ...]:
    """Return a change with the program's variable names; comments stay as they are.

    Args:
        change: The lines of the change.
        known: The program's name of each thing that a rule names.
        own: Lines of the program. A change of one of them has its names already.
    """
    kept = "\n".join(each for each in change if each.lstrip("-+ ") in own)
    foreign = {what: name for what, name in known.items() if not re.search(_USES[what], kept)}
    lines = []
    for line in change:
        code, mark, comment = line.partition("#")
        for what, name in foreign.items() if line.lstrip("-+ ") not in own else ():
            code = re.sub(_USES[what], name, code)
        lines.append(code + mark + comment)
    return tuple(lines)


def _with_user_names(text: str, evidence: Evidence) -> str:
    """Return a text in which the program's names of models stand before those of parameters."""
    names = evidence.of(UserNames)
    for number, model in enumerate(evidence.static.models):
        name = names.of(number).name
        text = text.replace(f"{model.kind}[{number}].", f"{name}.") if name else text
    return text


def _before(evidence: Evidence) -> str:
    """Return what the diagnosis is about, if an exception ended the program."""
    if not evidence.ending.kind or "loop" not in evidence.signals:
        return ""
    return f"in the {counted(_steps(evidence), 'step')} before the {evidence.ending.kind}"


def _unchecked(evidence: Evidence) -> str:
    # Of steps that the loop makes itself, only the values are checked.
    by_optimizers = [each for kind in _STEPS for each in evidence.loop.of(kind)]
    if "loop" not in evidence.signals or (by_optimizers and _steps(evidence)):
        return ""
    if evidence.numbers.are_own:
        return "the updates were not checked, because the loop makes them without an optimizer"
    why = "no optimizer made a step"
    if evidence.elsewhere:
        why = "the model runs in another thread than the one that doctor watches"
    return f"the training was not checked, because {why}"


def _steps(evidence: Evidence) -> int:
    """Return the number of steps that the program made, without one that raised an error."""
    return max(0, evidence.loop.iterations - evidence.ending.in_optimizer)


def _off_without_gpu(evidence: Evidence) -> str:
    environment = evidence.environment
    if environment.autocast_off and not _computes_in_half(evidence):
        scaler = " and GradScaler('cuda')" if environment.scaler_off else ""
        what, off = "half precision was not", f"torch.autocast('cuda'){scaler}"
    elif environment.scaler_off:
        what, off = "the loss scale was not", "GradScaler('cuda')"
    else:
        return ""
    return f"{what} checked, because PyTorch turns {off} off without a GPU"


def _computes_in_half(evidence: Evidence) -> bool:
    """Return whether the program entered autocast, or a model has parameters in a half format."""
    return (
        evidence.environment.autocast_on
        or any(event.facts.get("autocast") for _, event in evidence.loop.of("forward"))
        or any(HALVES & {*model.formats} for model in evidence.static.models)
    )


def _advice(evidence: Evidence) -> str:
    is_known = {"loop", "static", "calls"} <= evidence.signals
    cast = any(HALVES & {*each.formats, each.result} for each in evidence.calls)
    return _NEXT if cast or not is_known or _computes_in_half(evidence) else _NEXT_IN_FP32


def _notes(evidence: Evidence) -> tuple[str, ...]:
    notes = {
        f"the step could not be replayed: {each.note}" for each in evidence.replays if each.note
    }
    if evidence.precision.note:
        notes.add(f"headroom is not known: {evidence.precision.note}")
    if _off_without_gpu(evidence):
        notes.add(
            "to check half precision without a GPU, write torch.autocast('cpu', "
            "dtype=torch.float16) and torch.amp.GradScaler('cpu'), and train inside `with "
            "halfstep.cpu_half():`, which makes fp16 fast and lets autocast cast as on CUDA"
        )
    if _NO_KERNEL.search(evidence.ending.message):
        notes.add(
            "PyTorch has no half-precision kernel for this operator on a CPU; train inside `with "
            "halfstep.cpu_half():`, which uses fp32 kernels and rounds their results"
        )
    only_on_cpu = {
        each.operator
        for each in evidence.births
        if each.only_on_cpu and (each.culprit or each.is_divided)
    }
    if only_on_cpu:
        notes.add(
            f"autocast computes {' and '.join(sorted(only_on_cpu))} in half precision on this CPU, "
            "but in fp32 on CUDA; to see what a GPU would do, train inside `with "
            "halfstep.cpu_half():`"
        )
    if evidence.environment.graphs:
        notes.add(
            "doctor cannot watch the steps that a CUDA graph replays; to check them, train without "
            "CUDA graphs under doctor"
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
    worst = max(precision.agreements, key=lambda each: each.flushed, default=None)
    share, more = 0.0, ""
    if worst is not None:
        share = worst.flushed
        if share >= _EXPLAINED and worst.exact_norm:
            more = (
                f"; in {worst.parameter}, the norm of these elements is "
                f"{worst.lost / worst.exact_norm:.2%} of the gradient's norm"
            )
    bits = precision.bits_to_overflow
    far = (
        "no half-precision value is close to overflow"
        if bits >= _FAR
        else f"the largest half-precision value{where} is {bits:.1f} bits below overflow"
    )
    flushed = f"at most {max(share, 0.001):.1%}" if share else "no element"
    return f"headroom: {far}; underflow sets {flushed} of a gradient to 0{more}"
