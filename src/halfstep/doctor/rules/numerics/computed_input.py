"""The loop itself computes inf or NaN outside autograd: in a batch, a target or a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.doctor.record import Bad, Evidence
    from halfstep.doctor.record.replayed import Maker

_CLAMP = "clamp its argument"
_DIVISOR = "divide by a number that is never 0: divisor.clamp(min=1e-6)"
_HIDDEN = "the loss of this step is finite all the same, as after a division by inf"
_EPS = "an eps below 3e-8 in its divisor is 0 in fp16"
_SPREAD = (
    "of one number, std() is NaN, and of equal numbers, it is 0: "
    "x.std(correction=0).clamp(min=1e-6)"
)
_REMEDIES = {
    "cast": "the range of the format ends earlier: divide or normalise the numbers before the cast",
    "log": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).log()",
    "log2": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).log2()",
    "log10": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).log10()",
    "sqrt": f"{_CLAMP} to numbers from 0: x.clamp(min=0).sqrt()",
    "rsqrt": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).rsqrt()",
    "logit": f"{_CLAMP}: torch.logit(x, eps=1e-6)",
    "atanh": f"{_CLAMP} to numbers between -1 and 1: x.clamp(-1 + 1e-6, 1 - 1e-6).atanh()",
    "erfinv": f"{_CLAMP} to numbers between -1 and 1: x.clamp(-1 + 1e-6, 1 - 1e-6).erfinv()",
    "div": _DIVISOR,
    "reciprocal": _DIVISOR,
    "std": _SPREAD,
    "var": _SPREAD,
    "mean": "a mean over no elements is NaN: leave empty batches out",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find a tensor with inf or NaN that the loop computed outside the autograd graph."""
    for bad in evidence.inputs:
        updates = not evidence.numbers.steps or evidence.numbers.are_own  # by the loop itself
        is_weight = bad.what == "parameter" and bad.is_culprit and updates
        if bad.makers and (bad.is_from_loop or (is_weight and bad.makers[0].op in _REMEDIES)):
            return _finding(bad)
    return None


def _adds_in_fp16(makers: Sequence[Maker]) -> bool:
    """Return whether a quotient has a sum in fp16 among its operands."""
    return makers[0].op == "div" and any(
        each.op == "add" and each.format == "fp16" for each in makers[1:]
    )


def _finding(bad: Bad) -> Finding:
    maker = bad.makers[0]
    place = ", ".join(map(str, bad.index))
    line = maker.site.text if maker.site else ""
    return Finding(
        summary=f"the loop computes {counted(bad.count, f'{bad.value} value')} outside autograd, "
        f"and step {bad.iteration} reads them: {maker.op} made inf or NaN from finite numbers",
        facts=(
            *((f"the first one is at index [{place}]",) if place else ()),
            *((_HIDDEN,) if bad.is_hidden else ()),
            *((_EPS,) if _adds_in_fp16(bad.makers) else ()),
        ),
        change=(
            *((f"- {line}",) if line else ()),
            f"+ # {_remedy(bad.makers)}",
        ),
        confidence=LIKELY,
        site=maker.site,
    )


def _remedy(makers: tuple[Maker, ...]) -> str:
    maker, *args = makers
    if maker.op == "div" and any(each.op in ("std", "var") and each.input == 1 for each in args):
        return _SPREAD
    if maker.op not in _REMEDIES and maker.format == "fp16":
        return "the result is too large for fp16: call it outside autocast, with arguments in fp32"
    return _REMEDIES.get(maker.op, "inspect the arguments of this call")


RULE = Rule(
    code="COMPUTED_INPUT_NOT_FINITE",
    name="an input with inf or NaN that the loop computed outside autograd",
    rows=(35,),
    citations=("vanvalenlab/deepcell-toolbox#71", "google-deepmind/deepmind-research#346"),
    needs=frozenset({"inputs", "numbers"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "NORM_STATISTICS_POISONED"),
)
