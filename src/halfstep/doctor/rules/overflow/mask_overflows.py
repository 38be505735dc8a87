"""A large negative mask constant overflows to -inf when a score or a mask is added to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.constant import line_with_other_number
from halfstep.doctor.verdict import Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence
    from halfstep.doctor.record.sites import Site

_EDGE = 0.5
_LARGE = 1e4


def judge(evidence: Evidence) -> Finding | None:
    """Find an operator that turns the finite constant of a mask into -inf."""
    for birth in evidence.births:
        output = birth.output
        if not birth.culprit or birth.phase != "forward" or output.format not in FORMATS:
            continue
        if output.nans or not output.infs or output.infs != output.negative_infs:
            continue
        limit = FORMATS[output.format].max
        if not _is_mask(birth, limit):
            continue
        written = [each for each in birth.scalars if _is_constant(each, limit)]
        read = [each.lowest for each in birth.inputs if each.lowest is not None]
        lowest = min(written or read, default=0.0)
        return Finding(
            summary=f"a finite mask constant becomes -inf in {output.format}: "
            f"{birth.called} turns {lowest:.4g} into -inf in {counted(output.infs, 'element')}",
            facts=(
                birth.appears,
                f"next operators: {', '.join(birth.consumers[:3]) or 'none'}",
                "softmax of a row of -inf is NaN, and so is 0 times -inf",
            ),
            change=_change(birth.user_site, min(written, default=0.0)),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(site: Site | None, constant: float) -> tuple[str, ...]:
    """Return a change of the line that contains the constant; 0 for an unknown constant."""
    mark = (site.file, site.line, site.function) if site else None
    changed = line_with_other_number(mark, constant, f"{-_LARGE:g}") if mark else None
    if changed is not None:
        return f"- {changed[0]}", f"+ {changed[1]}"
    return (
        f"- {site.text if site else 'scores = scores + mask'}",
        "+ # with a Boolean mask, which is True at masked positions:",
        "+ scores = torch.where(mask, torch.finfo(scores.dtype).min, scores)",
    )


def _is_constant(number: float, limit: float) -> bool:
    return number <= -_LARGE and abs(number) > limit


def _is_mask(birth: Birth, limit: float) -> bool:
    if any(_is_constant(each, limit) for each in birth.scalars):
        return True
    for each in birth.inputs:
        if each.lowest is None or each.largest is None:
            continue
        if birth.op.startswith(("aten.add", "aten.sub")) and each.lowest <= -_EDGE * limit:
            return True
        # Apart from zeros, all elements of a mask have the same magnitude.
        if each.lowest < -limit and each.smallest == each.largest:
            return True
    return False


RULE = Rule(
    code="MASK_OVERFLOWS",
    name="a mask becomes -inf",
    rows=(23,),
    citations=(
        "NVIDIA/apex#93",
        "huggingface/transformers#17306",
    ),
    needs=frozenset({"births"}),
    judge=judge,
    explains=("FULLY_MASKED_ROW", "ACTIVATIONS_TOO_LARGE", "ATTENTION_LOGITS_OVERFLOW"),
)
