"""Gradients are not clipped, because the call gets no parameters, or none with a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.signals.ledgers.clipping import ClippingLines
from halfstep.doctor.verdict import CERTAIN, Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OFTEN = 2
_SHARE = 0.5  # of the steps


def judge(evidence: Evidence) -> Finding | None:
    """Find lines whose clipping has nothing to clip."""
    for line in evidence.of(ClippingLines).lines:
        if line.empty >= max(_OFTEN, _SHARE * line.steps):
            return Finding(
                summary="clip_grad_norm_() gets no parameters, so it clips nothing: an iterator, "
                "such as the result of model.parameters() or filter(), is empty once something "
                "else, such as the optimizer, has gone through it",
                facts=(
                    f"it got no parameters before {line.empty} of {counted(line.steps, 'step')}",
                ),
                change=(
                    "+ # a list can be gone through more than once; where the iterator is made:",
                    "+ parameters = list(parameters)",
                ),
                confidence=CERTAIN,
                site=line.site,
            )
        if line.bare == line.steps >= _OFTEN:
            text = line.site.text if line.site else "clip_grad_norm_(parameters, 1.0)"
            if line.copies:
                return Finding(
                    summary="clip_grad_norm_() clips nothing: it gets tensors that are not the "
                    "parameters themselves but share their values, such as those of state_dict() "
                    "or .data, and these never have a gradient",
                    facts=(f"no gradient before {line.bare} of {counted(line.steps, 'step')}",),
                    change=(
                        (
                            "+ # give it the parameters themselves: those of model.parameters(), "
                            "or of model.named_parameters() to choose by name"
                        ),
                    ),
                    confidence=CERTAIN,
                    site=line.site,
                )
            return Finding(
                summary="clip_grad_norm_() clips nothing: none of its parameters has a gradient "
                "when it is called",
                facts=(
                    f"no gradient before {line.bare} of {counted(line.steps, 'step')}",
                    "gradients exist from backward() to zero_grad()",
                ),
                change=(
                    f"- {text}",
                    "+ # between backward() and optimizer.step():",
                    f"+ {text}",
                ),
                confidence=CERTAIN,
                site=line.site,
            )
    return None


RULE = Rule(
    code="CLIPPED_NOTHING",
    name="gradients that are not clipped",
    rows=(58,),
    citations=("pytorch/pytorch#148259", "PixArt-alpha/PixArt-alpha#160"),
    needs=frozenset({"clipping"}),
    judge=judge,
    explains=("LEARNING_RATE_TOO_HIGH",),
)
