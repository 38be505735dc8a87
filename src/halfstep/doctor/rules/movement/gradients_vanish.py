"""The gradients vanish on their way to the first layers, or in units that have died."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Sample

_FEWEST = 4  # sampled steps
_PARAMETERS = 4
_FAR = 1e4  # times: the gradients of the last layers are larger
_BY_A_LAYER = 100.0  # times: one layer that saturates does more
_FROM_ZERO = 100.0
"""A gradient so many times its weight is that of a layer that begins at 0, as a head may."""
_MOVES = 1e-3  # of a weight's norm, in all steps together
_RISES = 2.0  # times the first losses; more is a training that diverged
_FALLS = 0.85  # of the first losses


def judge(evidence: Evidence) -> Finding | None:
    """Find layers that get next to no gradients while the loss does not fall."""
    lost = evidence.of(Influence).lost
    if lost is not None and lost.how != "saturated":
        return None  # An operator is constant by its shape, for any weights.
    for number, optimizer in enumerate(evidence.static.optimizers):
        course = evidence.numbers.course(number)
        mine = [each for each in evidence.samples if each.optimizer == number]
        # Other rates may be meant to keep loaded weights.
        if course is None or any(each.loaded for each in mine):
            continue
        if not _FALLS * course[0] <= course[1] <= _RISES * course[0]:
            continue
        if optimizer.largest_rate != optimizer.settings.get("lr"):
            continue
        steps = sorted({each.iteration for each in mine})
        if len(steps) < _FEWEST:
            continue
        finding = _dead(mine, steps, course, evidence) or _small(
            mine, course, optimizer.steps, is_lost=lost is not None
        )
        if finding is not None:
            return finding
    return None


def _small(
    samples: list[Sample], course: tuple[float, float], made: int, *, is_lost: bool
) -> Finding | None:
    """Find a first half of the layers that hardly moves, by gradients far below the last ones.

    Optimizers such as Adam move weights all the same. There, it counts that no prediction depends
    on the input, and that each layer makes the gradients a little smaller.
    """
    slopes: dict[str, list[float]] = {}
    updates: dict[str, float] = {}
    for each in samples:
        slopes.setdefault(each.parameter, []).append(each.relative_gradient)
        updates[each.parameter] = max(each.relative_update, updates.get(each.parameter, 0.0))
    names, usual = [*slopes], [median(each) for each in slopes.values()]
    if len(names) < _PARAMETERS or max(max(each) for each in slopes.values()) > _FROM_ZERO:
        return None
    half = len(names) // 2
    first, last = max(usual[: half // 2 + 1]), median(usual[-max(1, half // 2) :])
    still = all(updates[name] * made < _MOVES for name in names[: half // 2 + 1])
    then = "the first layers do not move"
    if is_lost and not still and all(a < b < _BY_A_LAYER * a for a, b in pairwise(usual)):
        first, last, still = usual[0], usual[-1], True
        then = "no prediction depends on the input"
    if not still or not 0 < first * _FAR < last:
        return None
    place = next(place for place in range(len(usual) - 1, -1, -1) if usual[place] * _FAR < last)
    return _finding(
        f"the gradients vanish on their way back: that of {names[0]} is {usual[0]:.1e} of its "
        f"norm, that of the last layers {last:.1e}, and {then}",
        (f"{names[place]} is the last sampled parameter whose gradient is {_FAR:g} times smaller",),
        course,
        names[place],
        (
            (
                "+ # keep gradients alike in all layers: a norm layer or a residual connection for "
                "each, ReLU or GELU in place of sigmoid and tanh, and an initialization for them"
            ),
        ),
    )


def _dead(
    samples: list[Sample], steps: list[int], course: tuple[float, float], evidence: Evidence
) -> Finding | None:
    """Find gradients that are exactly zero in the last sampled steps, of weights that are not."""
    last = steps[-2:]
    late = [each for each in samples if each.iteration in last]
    alive = {each.parameter for each in late if each.gradient_zeros < 1}
    names = [*dict.fromkeys(each.parameter for each in late if each.parameter not in alive)]
    count = len({each.parameter for each in samples})
    if len(names) < max(2, count / 2) or not all(each.norm for each in late):
        return None
    # Clipping, autocast or half precision may have made them zero.
    agreements = evidence.precision.agreements
    repeated = {each.parameter for each in agreements if each.norm or each.exact_norm}
    if not repeated.isdisjoint(names):
        return None
    since = min(
        each.iteration
        for each in samples
        if each.parameter == names[0] and each.gradient_zeros == 1
    )
    return _finding(
        f"from step {since} on, the gradient of {names[0]} is exactly 0 in the sampled steps: no "
        "unit behind it is active for any sample (dead ReLUs)",
        (f"so are those of {len(names)} of {count} sampled parameters: {', '.join(names[:3])}",),
        course,
        names[0],
        ("+ # a lower learning rate, or LeakyReLU or GELU in place of ReLU",),
    )


def _finding(
    summary: str,
    facts: tuple[str, ...],
    course: tuple[float, float],
    name: str,
    change: tuple[str, ...],
) -> Finding:
    return Finding(
        summary=summary,
        facts=(*facts, f"the loss is {course[0]:.4g} at first and {course[1]:.4g} at the end"),
        change=change,
        confidence=LIKELY,
        module=name.rpartition(".")[0],
    )


RULE = Rule(
    code="GRADIENTS_VANISH",
    name="gradients that vanish in the first layers",
    rows=(11,),
    citations=("shidi1985/L2RPN#6", "lucidrains/deep-cross-attention#2"),
    needs=frozenset({"numbers", "samples", "static", "precision"}),
    also=frozenset({Influence.signal}),
    judge=judge,
    explains=("INPUT_LOST", "LEARNING_RATE_TOO_LOW"),
    harmless=True,
)
