"""Softmax is applied to a row in which every position is masked."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import operand
from halfstep.doctor.verdict import Finding, Rule
from halfstep.plurals import counted

if TYPE_CHECKING:
    from halfstep.doctor.record import Birth, Evidence

_EMPTY = "+ empty = (scores == -torch.inf).all(-1, keepdim=True)"
_WEIGHTS: tuple[str, ...] = (
    "+ # leave one position of each row unmasked, or set the row's weights to 0:",
    _EMPTY,
    "+ weights = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)",
)


def judge(evidence: Evidence) -> Finding | None:
    """Find a softmax that returns NaN for rows with only -inf, or one by hand that does."""
    for birth in evidence.births:
        if birth.culprit and _is_logarithm_of_mask(birth):
            return Finding(
                summary="softmax gets rows in which every position is -inf, the logarithm of a "
                "mask that is 0 in all of the row: the result is 0/0 = NaN",
                facts=(birth.appears,),
                change=_WEIGHTS,
                site=birth.user_site,
                module=birth.module,
            )
        if not birth.culprit or not birth.dead_rows:
            continue
        if "softmax" in birth.op:
            name, result, change = "softmax", "0/0", _WEIGHTS
        elif _is_by_hand(birth):
            # Its gradient is the softmax, whose rows are computed by this difference, too.
            name = "the gradient of logsumexp" if birth.node else "a softmax by hand"
            result, change = "-inf - (-inf)", _scores(birth)
        else:
            continue
        return Finding(
            summary=f"{name} gets {counted(birth.dead_rows, 'row')} in which every position "
            f"is -inf: the result is {result} = NaN",
            facts=(birth.appears,),
            change=change,
            site=birth.user_site,
            module=birth.module,
        )
    return None


def _is_logarithm_of_mask(birth: Birth) -> bool:
    """Return whether it is the -inf of a mask of zeros and ones that makes a softmax NaN."""
    dead = {*birth.consumers} - {*birth.swallowed}
    is_written = birth.op == "aten.log" and birth.output.is_mask and birth.output.zeros > 0
    return is_written and not birth.output.largest and any("softmax" in each for each in dead)


def _scores(birth: Birth) -> tuple[str, ...]:
    line = birth.user_site.text if birth.user_site else ""
    name = operand(line, 0) or "scores"
    return (
        "+ # leave one position of each row unmasked, or set such rows to 0 before this line, and",
        "+ # leave them out of the loss:",
        _EMPTY.replace("scores", name).replace("-1", str(_dimension(birth))),
        f"+ {name} = {name}.masked_fill(empty, 0)",
    )


def _dimension(birth: Birth) -> int:
    """Return the dimension of the rows, in which the second input broadcasts, from the last."""
    row, other = (each.shape[::-1] for each in birth.inputs[:2])
    pairs = enumerate(zip_longest(row, other, fillvalue=1), 1)
    return next((-at for at, (size, its) in pairs if its == 1 < size), -1)


def _is_by_hand(birth: Birth) -> bool:
    """Return whether it subtracts from each row its maximum, or the logarithm of its sum."""
    is_difference = birth.op == "aten.sub" and len(birth.inputs) > 1
    return (
        is_difference
        and birth.inputs[1].negative_infs > 0
        and any(
            each.input == 1 for each in birth.upstream("aten.logsumexp", "aten.amax", "aten.max")
        )
    )


RULE = Rule(
    code="FULLY_MASKED_ROW",
    name="softmax over a fully masked row",
    rows=(24,),
    citations=("pytorch/pytorch#26098", "huggingface/transformers#17437"),
    needs=frozenset({"births"}),
    judge=judge,
    explains=("LOG_OF_ZERO",),
)
