"""The weights only shrink: their decay is much stronger than the gradient of the loss."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import with_argument
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence, Sample
    from halfstep.doctor.record.static import OptimizerFacts

_FEWEST = 3  # sampled steps
_INWARD = 0.9  # cosine
_INWARD_OF_SIGNS = 0.75  # a penalty gives Adam the signs of the weights: of normal ones, it is 0.8
_SHRUNK = 0.5  # of the norm before the first step
_LARGE = 2.0  # times its smallest norm: at that size, decay and gradients may be in balance
_MOST = 0.7  # of the sum of all norms is theirs: some biases begin near 0, or must stay
_FALLS = 0.9  # of the first losses
_VANISHED = 0.1  # of the norm before the first step
_NEARLY_ALL = 0.9  # of the sum of all norms


def judge(evidence: Evidence) -> Finding | None:
    """Find weights whose updates point to zero, while the loss does not fall."""
    for number, optimizer in enumerate(evidence.static.optimizers):
        course = evidence.numbers.course(number)
        steps = sorted({each.iteration for each in evidence.samples if each.optimizer == number})
        if course is None or len(steps) < _FEWEST:
            continue
        # A loss with a penalty falls with the weights.
        falls = course[1] < _FALLS * course[0]
        if falls and not _calms(evidence, number):
            continue
        left, most = (_VANISHED, _NEARLY_ALL) if falls else (_SHRUNK, _MOST)
        cosines = _while_shrinking([s for s in evidence.samples if s.optimizer == number])
        least = _INWARD_OF_SIGNS if _is_penalty(optimizer) else _INWARD
        inward = {name: median(its) for name, its in cosines.items() if median(its) >= least}
        mine = [each for each in evidence.growth.parameters if each.parameter in cosines]
        shrunk = [
            each for each in mine if each.parameter in inward and each.after <= left * each.before
        ]
        before, after = sum(each.before for each in shrunk), sum(each.after for each in shrunk)
        if shrunk and before >= most * sum(each.before for each in mine):
            return _finding(optimizer, course, (before, after), median(inward.values()))
    return None


def _calms(evidence: Evidence, number: int) -> bool:
    """Return whether the gradients have become smaller; those of weights before a norm grow."""
    norms = [each.gradient_norm for each in evidence.numbers.steps if each.optimizer == number]
    known = [each for each in norms if each is not None]
    return bool(known) and known[-1] <= known[0]


def _is_penalty(optimizer: OptimizerFacts) -> bool:
    """Return whether decay is a part of gradients that are divided by their size, as in Adam."""
    settings = optimizer.settings
    return bool("beta2" in settings and not settings.get("decoupled_weight_decay", True))


def _while_shrinking(samples: list[Sample]) -> dict[str, list[float]]:
    """Return the cosines of each parameter while it is larger than at its end, or else all."""
    smallest: dict[str, float] = {}
    for each in samples:
        smallest[each.parameter] = min(each.norm, smallest.get(each.parameter, each.norm))
    every: dict[str, list[float]] = {}
    large: dict[str, list[float]] = {}
    for each in samples:
        every.setdefault(each.parameter, []).append(each.inward)
        if each.norm >= _LARGE * smallest[each.parameter]:
            large.setdefault(each.parameter, []).append(each.inward)
    return every | large


def _finding(
    optimizer: OptimizerFacts,
    losses: tuple[float, float],
    norms: tuple[float, float],
    cosine: float,
) -> Finding:
    decay = optimizer.settings.get("weight_decay")
    rate = optimizer.settings.get("lr")
    change: tuple[str, ...] = (
        "+ # a smaller factor of the penalty in the loss, or of what else pulls weights to 0",
    )
    facts = [f"the cosine of update and direction to zero is {cosine:.3f}, as median"]
    if isinstance(decay, float | int) and decay:
        position = (
            optimizer.arguments.index("weight_decay")
            if "weight_decay" in (optimizer.arguments)
            else None
        )
        new = with_argument(
            optimizer.made_by, optimizer.kind, "weight_decay", "1e-4", position=position
        )
        facts.append(f"{optimizer.kind} has lr={rate:g} and weight_decay={decay:g}")
        if new and new != optimizer.made_by:
            change = (f"- {optimizer.made_by}", f"+ {new}")
        else:
            change = (f"+ # give {optimizer.kind} a smaller weight_decay, such as 1e-4",)
    return Finding(
        summary=f"the weights shrink from a norm of {norms[0]:.3g} to {norms[1]:.3g}, because "
        "their decay is much stronger than the gradient of the loss"
        + (
            ""
            if losses[1] < _FALLS * losses[0]
            else f", which does not fall: it is {losses[0]:.3g} at first and {losses[1]:.3g} at "
            "the end"
        ),
        facts=tuple(facts),
        change=change,
        confidence=LIKELY,
        site=optimizer.site,
    )


RULE = Rule(
    code="DECAY_DOMINATES",
    name="weights that decay faster than they learn",
    rows=(49,),
    citations=("NVIDIA/warp#1143",),
    needs=frozenset({"growth", "numbers", "samples", "static"}),
    judge=judge,
    harmless=True,
)
