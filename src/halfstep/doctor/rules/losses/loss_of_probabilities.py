"""A loss function that expects logits, or logarithms of probabilities, gets probabilities."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Influence
from halfstep.doctor.verdict import LIKELY, POSSIBLE, Finding, Rule

if TYPE_CHECKING:
    from halfstep.doctor.record import Evidence

_OF_LOGARITHMS = {"nll_loss", "NLLLoss"}


def judge(evidence: Evidence) -> Finding | None:
    """Find a cross entropy of probabilities, binary or not, or a negative log likelihood."""
    for call in (*evidence.calls, *evidence.of(Influence).inner):
        if not call.classes or not call.gradients:
            continue
        if call.name in _OF_LOGARITHMS:
            return Finding(
                summary=f"{call.name} gets probabilities, and needs their logarithms; the loss is "
                "negative, and its gradient does not depend on how wrong a prediction is",
                facts=("no input is negative, and the inputs of each sample sum to 1",),
                change=(
                    "- outputs = torch.softmax(outputs, dim=1)  # or nn.Softmax in the model",
                    "+ outputs = torch.log_softmax(outputs, dim=1)  # or nn.LogSoftmax",
                ),
                confidence=POSSIBLE,  # 1 plus this loss is a robust loss
                site=call.site,
            )
        if call.classes == 1:
            return Finding(
                summary=f"{call.name} gets probabilities, and needs logits: it applies the sigmoid "
                "itself, so what it takes for a probability lies between 0.5 and 0.73",
                facts=("its first argument is the result of a sigmoid or softmax",),
                change=(
                    "- outputs = torch.sigmoid(outputs)  # or nn.Sigmoid in the model",
                    "+ # without it before the loss; for predictions, apply it after the model",
                ),
                confidence=LIKELY,
                site=call.site,
            )
        lowest = math.log(math.e + call.classes - 1) - 1
        if call.sigmoid:
            return Finding(
                summary=f"{call.name} gets the results of a sigmoid, and needs logits: it applies "
                f"log_softmax itself, so with {call.classes} classes, the loss cannot fall below "
                f"{lowest:.3g}",
                facts=("its first argument is the result of a sigmoid, from 0 to 1",),
                change=(
                    "- outputs = torch.sigmoid(outputs)  # or nn.Sigmoid in the model",
                    "+ # without it before the loss, if each sample has one class; if it can have",
                    "+ # several, binary_cross_entropy_with_logits of the outputs without it",
                ),
                confidence=POSSIBLE,  # bounded logits may be meant
                site=call.site,
            )
        return Finding(
            summary=f"{call.name} gets probabilities, and needs logits: it applies log_softmax "
            f"itself, so with {call.classes} classes, the loss cannot fall below {lowest:.3g}",
            facts=("no input is negative, and the inputs of each sample sum to 1",),
            change=(
                "- outputs = torch.softmax(outputs, dim=1)  # or nn.Softmax in the model",
                "+ # without a softmax before the loss; for predictions, apply it after the model",
            ),
            confidence=LIKELY,
            site=call.site,
        )
    return None


RULE = Rule(
    code="LOSS_OF_PROBABILITIES",
    name="a loss function that expects logits but gets probabilities",
    rows=(35,),
    citations=("ariecattan/SciCo#2", "Lightning-Universe/lightning-bolts#654"),
    needs=frozenset({"calls", "influence"}),
    judge=judge,
    harmless=True,
)
