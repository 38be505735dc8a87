"""A large negative mask constant overflows to -inf, in a cast or when something is added to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.constant import line_with_other_number
from halfstep.doctor.verdict import CERTAIN, LIKELY, Finding, Rule
from halfstep.formats import FORMATS
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Bad, Birth, Evidence
    from halfstep.doctor.record.sites import Site

_EDGE = 0.5
_LARGE = 1e4
_HARM = "softmax of a row of -inf is NaN, and so is 0 times -inf"
_WORDS = "+ # the same line with a constant that {} can represent, such as -1e4"
_SELECTION = (
    "+ # with a Boolean mask, which is True at masked positions:",
    "+ scores = torch.where(mask, torch.finfo(scores.dtype).min, scores)",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find an operator or a cast that turns the finite constant of a mask into -inf."""
    inputs = map(_of_input, evidence.inputs)
    return next(filter(None, inputs), None) or _of_buffer(evidence) or _of_operator(evidence)


def _of_input(bad: Bad) -> Finding | None:
    """Find a mask that the loop computes in half precision before the step."""
    maker = bad.makers[0] if bad.makers else None
    if maker is None or not (bad.is_from_loop and bad.is_mask):
        return None
    return Finding(
        summary=f"a finite mask constant becomes -inf in {maker.format}: {maker.op} makes "
        f"{counted(bad.count, 'element')} -inf before step {bad.iteration}",
        facts=(_HARM,),
        change=_change(maker.site, 0.0, _WORDS.format(maker.format)),
        confidence=LIKELY,
        site=maker.site,
    )


def _of_buffer(evidence: Evidence) -> Finding | None:
    """Find a buffer in which a cast of the module has made -inf."""
    lost = [(name, cast) for cast in evidence.casts for name in cast.overflowed]
    for birth in evidence.births if lost else ():
        if not (birth.culprit and birth.on_purpose and birth.kind == "nan"):
            continue
        read = [each.name.removeprefix("buffer ") for each in birth.inputs if each.negative_infs]
        named = [each for each in lost if any(f".{its}".endswith(f".{each[0]}") for its in read)]
        if not (named or birth.dead_rows):
            continue
        name, cast = (named or lost)[0]
        constant = cast.overflowed[name]
        return Finding(
            summary=f"a finite mask constant becomes -inf in {cast.format}: the cast of "
            f"{cast.kind} makes {constant:.4g} in its buffer {name} -inf",
            facts=(birth.appears, _HARM),
            change=(f"+ # give the buffer {name} the constant {-_LARGE:g}, not {constant:g}",),
            confidence=CERTAIN if named else LIKELY,
            site=cast.site,
        )
    return None


def _of_operator(evidence: Evidence) -> Finding | None:
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
                _HARM,
            ),
            change=_change(birth.user_site, min(written, default=0.0), *_SELECTION),
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _change(site: Site | None, constant: float, *words: str) -> tuple[str, ...]:
    """Return a change of the line that contains the constant, or else words on its change.

    Args:
        site: The line.
        constant: The constant; 0 if unknown.
        words: Lines to add if the place of the constant is unknown.
    """
    mark = (site.file, site.line, site.function) if site else None
    changed = line_with_other_number(mark, constant, f"{-_LARGE:g}") if mark else None
    if changed is not None:
        return f"- {changed[0]}", f"+ {changed[1]}"
    return f"- {site.text if site else 'scores = scores + mask'}", *words


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
    needs=frozenset({"births", "casts", "inputs"}),
    judge=judge,
    explains=(
        "FULLY_MASKED_ROW",
        "ACTIVATIONS_TOO_LARGE",
        "ATTENTION_LOGITS_OVERFLOW",
        "COMPUTED_INPUT_NOT_FINITE",
    ),
)
