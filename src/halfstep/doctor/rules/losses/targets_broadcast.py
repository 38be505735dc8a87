"""Outputs of shape (N, 1) and targets of shape (N,), or the reverse, broadcast to (N, N).

A loss of this result compares each output with the targets of all samples. A model that minimises
it gives the same output for every sample: for a squared error, the mean of the targets. Weights of
samples lose their effect in the same way, also those that multiply a mean over the samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.record.source import argument, operand
from halfstep.doctor.signals.values.weighted_means import WeightedMeans
from halfstep.doctor.verdict import LIKELY, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Broadcast, Call, Evidence


_FEWEST = 2  # steps
_SUBTRACTIONS = {"sub", "rsub", "subtract"}
_PRODUCTS = {"mul", "rmul", "multiply", "div", "divide", "truediv", "true_divide"}
_WEIGHTED = "is weighted with those of all samples, and so all samples have the same weight"
_COMPARED = (
    "is compared with the targets of all samples, and the model learns one output for all samples"
)


def judge(evidence: Evidence) -> Finding | None:
    """Find tensors of unequal shapes, or a mean and weights, that broadcast in a loss."""
    return _shapes(evidence) or _mean(evidence)


def _mean(evidence: Evidence) -> Finding | None:
    for each in evidence.of(WeightedMeans).lines:
        if each.count >= _FEWEST or each.count == each.examined:
            return Finding(
                summary=f"the loss is a mean over {each.samples} samples before it is multiplied "
                f"by their weights of shape {_text(each.weights)}, so all samples have the same "
                "weight: only the mean of the weights has an effect",
                facts=(f"in {each.count} of {counted(each.examined, 'examined step')}",),
                change=(
                    (
                        "+ # compute the loss of each sample, weigh it, and take the mean "
                        'afterwards: reduction="none"'
                    ),
                    *((f"  {each.site.text}",) if each.site else ()),
                ),
                confidence=LIKELY,
                site=each.site,
            )
    return None


def _shapes(evidence: Evidence) -> Finding | None:
    for call in (*evidence.calls, *evidence.of(Influence).inner):
        found = call.broadcast
        if found is None:
            continue
        weighs = _operator(call) in _PRODUCTS
        name = "a subtraction" if _operator(call) in _SUBTRACTIONS else call.name
        name = "a product" if weighs else name
        others = "weights" if weighs else "targets"
        return Finding(
            summary=f"{name} broadcasts outputs of shape {_text(found.outputs)} and {others} of "
            f"shape {_text(found.targets)} to {_text(found.together)}, so each output "
            + (_WEIGHTED if weighs else _COMPARED),
            facts=(f"both tensors have {math.prod(found.outputs)} elements",)
            if math.prod(found.outputs) == math.prod(found.targets)
            else (f"these {others} have come from tensors that broadcast before",),
            change=_change(call, found),
            confidence=LIKELY,
            site=call.site,
        )
    return None


def _operator(call: Call) -> str:
    return call.name.strip("_")


def _change(call: Call, found: Broadcast) -> tuple[str, ...]:
    """Return the change, with the program's names of outputs and targets if they are known."""
    if math.prod(found.outputs) != math.prod(found.targets):
        return (
            f"+ # compute the targets from tensors of the shape {_text(found.outputs)} only, by",
            "+ # squeeze(-1) or unsqueeze(-1), as in rewards + discount * values.view_as(rewards)",
        )
    text = call.site.text if call.site else ""
    places = found.at, 1 - found.at
    if _operator(call) in _SUBTRACTIONS | _PRODUCTS:
        targets, outputs = (operand(text, at) for at in places)
    else:  # The program's name of a loss module is unknown.
        targets, outputs = (argument(text, None, 2, at) for at in places)
    shape = ", ".join(map(str, (-1, *found.outputs[1:])))
    changed = f"view_as({outputs})" if outputs else f"view({shape})"
    if not targets.isidentifier():
        name = "weights" if _operator(call) in _PRODUCTS else "targets"
        return (
            f"+ # give the {name} the shape of the outputs before this line: .{changed}",
            "+ # and the same for other tensors of this shape in it, such as weights",
        )
    return (
        f"+ {targets} = {targets}.{changed}  # before this line",
        "+ # and the same for other tensors of this shape in it, such as weights",
    )


def _text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


RULE = Rule(
    code="TARGETS_BROADCAST",
    name="targets that broadcast against the outputs",
    rows=(35,),
    citations=("pytorch/pytorch#16045", "pytorch/pytorch#19699"),
    needs=frozenset({"calls", "influence", "weighted means"}),
    judge=judge,
    harmless=True,
)
