"""The loop itself computes inf or NaN without gradients: in a batch, a target or a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Bad, Evidence
    from halfstep.doctor.record.replayed import Maker

_CLAMP = "clamp its argument"
_DIVISOR = "divide by a number that is never 0: divisor.clamp(min=1e-6)"
_SPREAD = (
    "of one number, std() is NaN, and of equal numbers, it is 0: "
    "x.std(correction=0).clamp(min=1e-6)"
)
_REMEDIES = {
    "cast": "divide or normalise the numbers before the cast: fp16 ends at 65504",
    "log": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).log()",
    "log2": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).log2()",
    "log10": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).log10()",
    "sqrt": f"{_CLAMP} to numbers from 0: x.clamp(min=0).sqrt()",
    "rsqrt": f"{_CLAMP} to numbers above 0: x.clamp(min=1e-6).rsqrt()",
    "logit": f"{_CLAMP}: torch.logit(x, eps=1e-6)",
    "div": _DIVISOR,
    "divide": _DIVISOR,
    "true_divide": _DIVISOR,
    "truediv": _DIVISOR,
    "reciprocal": _DIVISOR,
    "std": _SPREAD,
    "var": _SPREAD,
    "mean": "a mean over no elements is NaN: leave empty batches out",
}


def judge(evidence: Evidence) -> Finding | None:
    """Find a tensor with inf or NaN that the loop computed outside the autograd graph."""
    for bad in evidence.inputs:
        if bad.is_from_loop and bad.makers:
            return _finding(bad)
    return None


def _finding(bad: Bad) -> Finding:
    last = min(bad.makers, key=_suspicion)
    place = ", ".join(map(str, bad.index))
    line = last.site.text if last.site else ""
    return Finding(
        summary=f"the loop computes {counted(bad.count, f'{bad.value} value')} without gradients: "
        f"{_called(bad.makers)} made a tensor that step {bad.iteration} reads",
        facts=(f"the first one is at index [{place}]",),
        change=(
            *((f"- {line}",) if line else ()),
            f"+ # {_REMEDIES.get(last.op, 'inspect the arguments of this call')}",
        ),
        confidence=LIKELY,
        site=last.site,
    )


def _suspicion(maker: Maker) -> tuple[bool, bool]:
    """Return a sort key: `std` and `var` first, then other calls with a remedy, then the rest."""
    return maker.op not in ("std", "var"), maker.op not in _REMEDIES


def _called(makers: tuple[Maker, ...]) -> str:
    """Return the calls in the order in which they ran, as text: "log and mul"."""
    names = [each.op for each in reversed(makers)]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


RULE = Rule(
    code="COMPUTED_INPUT_NOT_FINITE",
    name="inf or NaN that the loop computes without gradients",
    rows=(35,),
    citations=("vanvalenlab/deepcell-toolbox#71", "google-deepmind/deepmind-research#346"),
    needs=frozenset({"inputs"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH", "NORM_STATISTICS_POISONED"),
)
