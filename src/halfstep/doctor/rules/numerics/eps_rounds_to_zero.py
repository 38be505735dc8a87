"""An eps that is meant to prevent a division by zero is itself zero in half precision."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from halfstep.doctor.record import HALVES
from halfstep.doctor.record.constant import line_with_other_number
from halfstep.doctor.record.sites import place
from halfstep.doctor.record.source import (
    other_lines_with_eps,
    with_argument,
)
from halfstep.doctor.remedies import fp16_eps
from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.sites import Site

# The default eps of functions whose fourth argument is the eps.
_DEFAULTS = {"normalize": 1e-12, "cosine_similarity": 1e-8}
_WRITES_EPS = ("aten.add", "aten.clamp", "aten.rsub", "aten.sub", "aten.full", "aten.scalar_tensor")
_DIVIDES = {
    "aten.div",
    "aten.reciprocal",
    "aten.rsqrt",
    "aten.pow",
    "aten.log",
    "aten.log2",
    "aten.log10",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find a division by zero, or a similar operator at zero, whose eps was rounded to zero."""
    for birth in evidence.births:
        if not birth.culprit or birth.phase == "given":
            continue
        lost = [
            (maker.site or birth.user_site, each, form)
            for maker in birth.upstream(*_WRITES_EPS)
            for each in maker.scalars
            for form in HALVES & {maker.format, birth.inputs[maker.input].format}
            if FORMATS[form].rounds_to_zero(each)
        ]
        lost += [
            (maker.site or birth.user_site, each, maker.format)
            for maker in birth.upstream("aten.clamp", "aten.maximum")
            for each in maker.rounded
            if each == 0
        ]
        divided = birth.op in _DIVIDES or birth.forward_op in _DIVIDES
        if not divided or not lost or not any(each.zeros for each in birth.inputs):
            continue
        site, eps, form = lost[0]
        eps16 = fp16_eps(birth.forward_op or birth.op)
        elsewhere = _elsewhere(site, eps)
        written = f"an eps of {eps:g}" if eps else "an eps that is a tensor"
        return Finding(
            summary=f"{written} is 0 in {form}: {birth.called} gets 0 and returns {birth.value}",
            facts=(birth.appears, f"the eps is used {place('', site)}", *elsewhere),
            change=(
                *_with_eps(site, eps, eps16),
                "+ # a smaller eps works in fp32 (x.float() for each input x) if no divisor is 0;",
                "+ # where a divisor is 0, the gradient is divided by eps, and overflows in fp16",
            ),
            site=site,
            module=birth.module,
        )
    return None


def _with_eps(site: Site | None, eps: float, eps16: str) -> tuple[str, ...]:
    """Return a change that gives the line of the site another eps, as lines with "+" and "-"."""
    if site is None:
        return f"- x / (norm + {eps or 1e-8:g})", f"+ x / (norm + {eps16})"
    mark = (site.file, site.line, site.function)
    changed = line_with_other_number(mark, eps, eps16)
    if changed is not None:
        return f"- {changed[0]}", f"+ {changed[1]}"
    for function, default in _DEFAULTS.items():
        line = with_argument(site.text, function, "eps", eps16, position=3)
        if eps == default and line is not None:
            return f"- {site.text}", f"+ {line}"
    return f"- {site.text}", f"+ # the same line with an eps of {eps16} or more"


def _elsewhere(site: Site | None, eps: float) -> tuple[str, ...]:
    """Return a fact on other lines of the same function that use the same eps."""
    if site is None:
        return ()
    lines = other_lines_with_eps((site.file, site.line, site.function), eps)
    if not lines:
        return ()
    named = ", ".join(str(replace(site, line=each)) for each in lines)
    return (f"the same eps is also used in {named}",)


RULE = Rule(
    code="EPS_ROUNDS_TO_ZERO",
    name="an eps that is zero in half precision",
    rows=(25,),
    citations=(
        "pytorch/pytorch#32137",
        "pytorch/pytorch#61954",
    ),
    needs=frozenset({"births"}),
    judge=judge,
    explains=("LOG_OF_ZERO", "ROOT_AT_ZERO", "LOSS_IN_FP16", "DIVISION_BY_ZERO"),
)
