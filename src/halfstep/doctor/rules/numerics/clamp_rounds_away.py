"""The limit of a clamp is just below 1, and half precision rounds this limit to 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record import HALVES
from halfstep.doctor.record.source import with_converted_receiver
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Bad, Birth, Evidence
    from halfstep.doctor.record.sites import Site

_BOUNDS = ("aten.full", "aten.new_full", "aten.scalar_tensor")
_SELECTS = ("minimum", "maximum", "fmin", "fmax", "where")
_CLAMPS = ("aten.clamp", "aten.hardtanh", *(f"aten.{each}" for each in _SELECTS))
_CLAMP_CALLS = ("clamp", "clip", "clamp_min", "clamp_max", "hardtanh", *_SELECTS)
_AT_ONE = {"aten.atanh", "aten.logit", "aten.erfinv", "aten.log1p", "aten.special_logit"}


def judge(evidence: Evidence) -> Finding | None:
    """Find an operator that returns inf or NaN at a limit that a clamp should exclude."""
    if found := next(filter(None, map(_of_input, evidence.inputs)), None):
        return found
    if not evidence.exact_is_finite():
        return None
    for birth in evidence.births:
        if not birth.culprit or birth.phase == "given":
            continue
        bounds = _BOUNDS if birth.upstream(*(f"aten.{each}" for each in _SELECTS)) else ()
        # The result of the clamp may be cast to half precision only afterwards.
        lost = [
            (maker.site, each, form)
            for maker in birth.upstream(*_CLAMPS, *bounds)
            for each in maker.scalars
            for form in HALVES & {maker.format, birth.inputs[maker.input].format}
            if _is_one(each, form)
        ]
        lost += [
            (maker.site, each, maker.format)
            for maker in birth.upstream(*_CLAMPS)
            for each in maker.rounded
            if abs(each) == 1
        ]
        if birth.op in {"aten.logit", "aten.special_logit"}:
            form = birth.inputs[0].format
            lost += [
                (birth.user_site, 1 - each, form)
                for each in birth.scalars
                if each and _is_one(1 - each, form)
            ]
        at_limit = birth.op in _AT_ONE or any(each.zeros for each in birth.inputs)
        if not lost or not at_limit:
            continue
        site, bound, form = lost[0]
        limit = "a limit just below 1" if abs(bound) == 1 else f"{bound:.10g}"
        return Finding(
            summary=f"a clamp to {limit} has no effect: {form} rounds this limit to 1, and "
            f"{birth.called} then gives {birth.value}",
            facts=(
                f"{birth.appears}, in the {birth.phase} pass",
                "the same step in fp32 is finite",
                f"the largest {form} number below 1 is {1 - FORMATS[form].eps / 2:.6g}",
            ),
            change=_change(site or birth.user_site, birth),
            site=site or birth.user_site,
            module=birth.module,
        )
    return None


def _of_input(bad: Bad) -> Finding | None:
    """Find such a call outside the graph; the limit of its clamp is not recorded."""
    if not (bad.is_from_loop and len(bad.makers) > 1):
        return None
    maker, *args = bad.makers
    clamps = [each for each in args if each.op in _CLAMP_CALLS and each.format in HALVES]
    if f"aten.{maker.op}" not in _AT_ONE or not clamps:
        return None
    form = clamps[0].format
    largest = 1 - FORMATS[form].eps / 2
    return Finding(
        summary=f"a clamp does not keep the argument of {maker.op} off its limit: {form} rounds "
        f"numbers above {1 - FORMATS[form].eps / 4:.6g} to 1, and {maker.op} then gives "
        f"{bad.value} {counted(bad.count, 'time')}",
        facts=(f"the largest {form} number below 1 is {largest:.6g}",),
        change=_change(maker.site, None),
        confidence=LIKELY,
        site=maker.site,
    )


def _change(site: Site | None, birth: Birth | None) -> tuple[str, ...]:
    line = site.text if site else ""
    clamps = birth.upstream(*_CLAMPS) if birth else []
    if birth and any(each.site == site and each.format not in HALVES for each in clamps):
        return (
            f"+ # keep the result of `{line}` in fp32 as far as {birth.called}, without a cast",
        )
    conversions = [with_converted_receiver(line, name, ".float()") for name in ("clamp", "clip")]
    if changed := next(filter(None, conversions), None):
        return f"- {line}", f"+ {changed}"
    in_fp32 = "+ # the same line, with the numbers that it limits cast by .float()"
    return (f"- {line}", in_fp32) if line else (in_fp32,)


def _is_one(bound: float, form: str) -> bool:
    return form in HALVES and 0 < 1 - abs(bound) <= FORMATS[form].eps / 4


RULE = Rule(
    code="CLAMP_ROUNDS_AWAY",
    name="a clamp that half precision rounds away",
    rows=(26,),
    citations=("fastino-ai/GLiNER2#155",),
    needs=frozenset({"births", "inputs", "replays"}),
    judge=judge,
    explains=(
        "LOG_OF_ZERO",
        "ROOT_AT_ZERO",
        "EPS_ROUNDS_TO_ZERO",
        "LOSS_IN_FP16",
        "COMPUTED_INPUT_NOT_FINITE",
    ),
)
