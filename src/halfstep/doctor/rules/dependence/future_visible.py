"""A model that predicts the next token sees the tokens that it is to predict.

A causal mask is missing or inverted, a recurrent layer is bidirectional, or a convolution reads
later positions. The loss falls far, and the model is useless where the next token is unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence
    from halfstep.doctor.record.answers import Place

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_ATTENTION = ("softmax", "attention")


def judge(evidence: Evidence) -> Finding | None:
    """Find a loss of next tokens whose outputs change with later tokens."""
    for found in evidence.of(Influence).shifts:
        if found.shift != 1 or not found.early or found.at is None:
            continue
        return Finding(
            summary="the targets are the next tokens of the input, and the outputs depend on them: "
            f"{_reason(found.at)}",
            facts=(
                (
                    f"with other tokens from position {found.start} of {found.length} on, "
                    f"{found.early} outputs before this position change"
                ),
            ),
            change=_change(found.at),
            confidence=LIKELY,
            site=found.at.site,
            module=found.at.module,
        )
    return None


def _reason(at: Place) -> str:
    if at.kind in _RECURRENT:
        return f"{at.kind} is bidirectional"
    if at.op == "convolution":
        return "the convolution reads later positions"
    if any(each in at.op for each in _ATTENTION):
        return "the attention has no causal mask, or a wrong one"
    return f"{at.op} lets earlier positions see later ones"


def _change(at: Place) -> tuple[str, ...]:
    if at.kind in _RECURRENT:
        return (f"+ # create the layer for one direction: nn.{at.kind}(..., bidirectional=False)",)
    if at.op == "convolution":
        return ("+ # pad the start only: F.pad(x, (dilation * (kernel_size - 1), 0)), padding=0",)
    if at.kind == "MultiheadAttention":
        return (
            "+ # pass a causal mask to the layer:",
            "+ # mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))",
        )
    if "attention" in at.op:
        return ("+ # F.scaled_dot_product_attention(q, k, v, is_causal=True)",)
    if "softmax" in at.op:
        return (
            "+ # hide later positions before the softmax:",
            "+ # later = torch.ones(T, T, dtype=torch.bool).triu(1)",
            '+ # scores = scores.masked_fill(later, float("-inf"))',
        )
    return ("+ # compute each position from earlier positions only",)


RULE = Rule(
    code="FUTURE_VISIBLE",
    name="a model that sees the tokens that it is to predict",
    rows=(35,),
    citations=("pytorch/tutorials#2478", "huggingface/transformers#48745"),
    needs=frozenset({"influence"}),
    judge=judge,
    harmless=True,
)
