"""Padding of sequences: whether it counts in a loss, and whether a mask hides the wrong side.

A token is padding only if the program itself says so: by the `padding_idx` of an embedding, by a
mask that marks exactly its positions, or by `pad_sequence`. Attention that reads nothing but one
token at the ends of rows says so as well. Inputs that are no tokens are padded by `pad_sequence`.

Padding counts in a loss if the loss has gradients for the predictions there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.influence import InvertedMask, Padding
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import counting, losses, picked, place
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss
    from halfstep.doctor.signals.data.padded import PaddedBatch

_SHARE = 0.2
_FEWEST = 8  # targets
_SOFTMAXES = frozenset({"_softmax", "_safe_softmax"})
_FUSED = "scaled_dot_product"
_HIDDEN = -9e3  # of a score; some add -1e4 to it
_LEARNED = 4  # tokens beside those of the input
_KINDS = 8  # different tokens that are hidden; fewer may be the parts of a sequence


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """A padded input.

    Attributes:
        token: The token that fills it up.
        tokens: The input, of shape (samples, positions); its padding if it has no tokens.
        padding: Where it is padding.
        declared: How the program marks the token; "" if it does not.
    """

    token: int
    tokens: torch.Tensor
    padding: torch.Tensor
    declared: str


def padded(forwards: Forwards, batches: Sequence[PaddedBatch] = ()) -> list[Padded]:
    """Return the inputs of a step that one token fills up, whether or not it is declared.

    Args:
        forwards: Runs the forward.
        batches: What the program has padded last.
    """
    found = []
    for tokens in forwards.inputs.values():
        known = ((each.padding_of(tokens), each.value) for each in batches)
        padding, value = next((each for each in known if each[0] is not None), (None, 0.0))
        if padding is not None:
            is_of_tokens = tokens.ndim == 2 and not tokens.is_floating_point()
            its = tokens if is_of_tokens else padding
            found.append(Padded(int(value), its, padding, "pad_sequence"))
            continue
        if tokens.ndim != 2 or tokens.dtype not in (torch.int64, torch.int32):
            continue
        last = tokens[:, -1].unique()
        for token in last.tolist()[:4]:
            padding = tokens == token
            if not _is_at_ends(padding) or bool(padding.all()):
                continue
            declared = _declared(forwards, tokens, padding, token)
            if not declared and any(each.fills(tokens, token) for each in batches):
                declared = "pad_sequence"
            found.append(Padded(int(token), tokens, padding, declared))
    return found


def padded_features(forwards: Forwards) -> Iterator[Padded]:
    """Yield the inputs of features whose rows end with zeros, as an input of lengths or masks says.

    Features may be 0 for other reasons.
    """
    others = [each for each in forwards.inputs.values() if each.ndim < 3]
    for features in forwards.inputs.values():
        if features.ndim != 3 or not features.is_floating_point():
            continue
        padding = (features == 0).all(-1)
        if not _is_at_ends(padding) or bool(padding.all()):
            continue
        marks = (padding, ~padding, (~padding).sum(1))
        if any(torch.equal(each.to(mark.dtype), mark) for each in others for mark in marks):
            yield Padded(0, padding, padding, "length")


def _is_at_ends(padding: torch.Tensor) -> bool:
    """Return whether padding fills only the ends of rows, and more than the last position."""
    return bool((padding.long().diff(dim=1) >= 0).all()) and bool(padding[:, -2:].all(1).any())


def _declared(forwards: Forwards, tokens: torch.Tensor, padding: torch.Tensor, token: int) -> str:
    for each in forwards.base:
        if (
            each.name == "embedding"
            and len(each.args) > 2
            and each.args[2] == token
            and each.given[1].shape == tokens.shape
            and torch.equal(each.given[1], tokens)
        ):
            return "padding_idx"
    for mask in forwards.inputs.values():
        if mask is tokens or mask.shape != tokens.shape:
            continue
        if torch.equal(mask.bool(), padding) or torch.equal(mask.bool(), ~padding):
            return "mask"
    return ""


def padding_that_counts(forwards: Forwards, inputs: list[Padded]) -> Padding | None:
    """Return the padding that counts in a loss of a step; None for none."""
    declared = [each for each in inputs if each.declared]
    for loss in (*losses(forwards.base), *picked(forwards.base)) if declared else ():
        counted = None
        for each in declared:
            laid_out = _laid_out(loss, each)
            if laid_out is None:
                continue
            if counted is None:
                counted = loss.counted if loss.is_plain else counting(loss, forwards.ends)
            if counted is None:
                break
            found = _counted(loss, each, counted, *laid_out)
            if found is not None:
                return found
    return None


def _laid_out(loss: Loss, one: Padded) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return targets of shape (samples, positions, numbers), and which positions are padding.

    Returns:
        None if the targets have no such shape, or are not the same in all of the padding.
    """
    samples, positions = one.padding.shape
    targets = loss.targets
    for length in (positions, positions - 1):
        width, rest = divmod(targets.numel(), samples * max(1, length))
        is_wide = width > 1 and targets.shape[:2] == (samples, length)
        if rest or not (width == 1 or is_wide) or targets.numel() < _FEWEST:
            continue
        rows = targets.reshape(samples, length, width)
        padding = one.padding[:, positions - length :]
        if length == positions and not _is_one_value(rows, padding):
            # The targets are the next tokens: the last one of a padded row is padding, too.
            padding = torch.cat([one.padding[:, 1:], one.padding[:, -1:]], 1)
        if padding.any() and not padding.all() and _is_one_value(rows, padding):
            return rows, padding
    return None


def _counted(
    loss: Loss, one: Padded, counted: torch.Tensor, rows: torch.Tensor, padding: torch.Tensor
) -> Padding | None:
    counts = counted.reshape(rows.shape).any(-1)
    share = float((padding & counts).sum() / counts.sum().clamp(min=1))
    target = float(rows[padding].flatten()[0])
    if share < _SHARE or target == loss.ignored:
        return None
    return Padding(one.token, target, share, one.declared, loss.is_of_classes, loss.site)


def _is_one_value(rows: torch.Tensor, padding: torch.Tensor) -> bool:
    values = rows[padding]
    return bool(values.numel()) and bool((values == values[0]).all())


def inverted_masks(forwards: Forwards, inputs: list[Padded]) -> Iterator[InvertedMask]:
    """Yield the masks that hide all tokens of a padded input, and none of its padding."""
    for operator in forwards.base:
        if operator.name not in _SOFTMAXES and _FUSED not in operator.name:
            continue
        for at, scores in enumerate(operator.given):
            if scores.ndim < 2 or not scores.is_floating_point() or not _hides(scores):
                continue
            for each in inputs:
                if (each.declared or _hides_many(each)) and _is_inverted(scores, each):
                    share = float((~each.padding).float().mean())
                    yield InvertedMask(each.token, share, place(_masking(forwards, operator, at)))


def _hides(scores: torch.Tensor) -> bool:
    return bool(scores.numel()) and bool((scores <= _HIDDEN).any())


def _hides_many(one: Padded) -> bool:
    return len(one.tokens[~one.padding].unique()) >= _KINDS


def _is_inverted(scores: torch.Tensor, one: Padded) -> bool:
    """Return whether scores, also of several heads and queries, hide exactly what is no padding.

    Learned tokens may stand before the input, or after it.
    """
    samples, positions = one.tokens.shape
    scores = scores.flatten(0, -2)  # heads and queries of one sample follow each other
    more = scores.shape[-1] - positions
    if not 0 <= more <= _LEARNED or scores.shape[0] % samples:
        return False
    hidden = (scores.detach() <= _HIDDEN).reshape(samples, -1, scores.shape[-1])
    parts = [hidden[..., first : first + positions] for first in {0, more}]
    return any(bool((each == ~one.padding[:, None]).all()) for each in parts)


def _masking(forwards: Forwards, operator: Operator, at: int) -> Operator:
    """Return the operator that has hidden the scores which another one gets."""
    number = operator.makers[at]
    while number != OUTSIDE:
        operator = forwards.base[number]
        number = next(
            (
                maker
                for maker, given in zip(operator.makers, operator.given, strict=True)
                if given.ndim and given.is_floating_point() and _hides(given)
            ),
            OUTSIDE,
        )
    return operator
