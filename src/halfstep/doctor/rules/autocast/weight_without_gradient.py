"""A weight never learns: the model uses a half-precision copy that autograd does not track."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence


def judge(evidence: Evidence) -> Finding | None:
    """Find parameters that got no gradient, but were cast under no_grad or get one in a replay."""
    if not evidence.loop.iterations:
        return None  # Gradients are looked at in steps.
    precision = evidence.precision
    differentiable = {each.parameter for each in precision.agreements if each.norm > 0}
    for number, model in enumerate(evidence.static.models):
        for name in model.never_reached:
            # With several models, the names of parameters have the model as a prefix.
            names = {name, f"{model.kind}[{number}].{name}"}
            cast = not names.isdisjoint(precision.detached)
            if not cast and names.isdisjoint(differentiable):
                continue
            return Finding(
                summary=f"{name} never got a gradient although its module ran: the module uses a "
                "half-precision copy that autograd does not track",
                facts=(
                    "the weight was cast to a half format under no_grad, or detached"
                    if cast
                    else "without autocast's cache, the weight gets a gradient in the same step",
                    (
                        f"{counted(len(model.never_reached), 'trained parameter')} of {model.kind} "
                        "never got a gradient"
                    ),
                ),
                change=(
                    "- with torch.no_grad():",
                    "-     cached = weight.half()",
                    "+ # let autocast cast the weight. Where the loop also runs the layer under",
                    "+ # no_grad, write torch.autocast(..., cache_enabled=False): otherwise,",
                    "+ # training uses the copy that autocast made there, which has no gradient",
                ),
                module=name.rpartition(".")[0],
            )
    return None


RULE = Rule(
    code="WEIGHT_CAST_WITHOUT_GRADIENT",
    name="a cast weight that gets no gradient",
    rows=(39,),
    citations=("pytorch/pytorch#165068", "NVIDIA/apex#132"),
    needs=frozenset({"loop", "static", "precision"}),
    judge=judge,
    explains=("PART_WITHOUT_GRADIENT",),
)
