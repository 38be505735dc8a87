"""Predictions that are the same for every input, and the operator at which the input is lost.

All samples of a batch change places. Predictions that stay as they are, in evaluation mode and in
training mode, do not depend on the input. Those of a part of the samples do not either if they are
equal, and an operator takes only zeros of the features of these samples: for example the last
position of padded sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.doctor.record.influence import Lost
from halfstep.doctor.replay.influence.forward import OUTSIDE
from halfstep.doctor.replay.influence.losses import losses, mask_of, place
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    import torch

    from halfstep.doctor.replay.influence.forward import Operator
    from halfstep.doctor.replay.influence.forwards import Forwards
    from halfstep.doctor.replay.influence.losses import Loss

_SATURATING = frozenset(
    {
        *("relu", "relu_", "threshold", "hardtanh", "hardtanh_", "clamp", "clamp_min", "clamp_max"),
        *("sigmoid", "sigmoid_", "tanh", "tanh_", "hardsigmoid"),
        *("round", "sign", "floor", "ceil", "trunc"),
    }
)
_ROUNDING = 1e-6
_FEATURES = 2  # dimensions: samples and features
_FEWEST = 4  # features
_MOST = 0.5  # of the samples
_PARTS = frozenset({"gather", "index", "index_select", "select", "slice", "split", "unbind"})
_SOFTMAXES = frozenset({"_softmax", "_log_softmax"})


def lost_input(forwards: Forwards) -> Lost | None:
    """Return where a step loses its input; None if it does not, or if this is not known."""
    kinds = [_kind(each) for each in forwards.base]
    constant = (each for each, kind in zip(forwards.base, kinds, strict=True) if kind)
    is_cut = any(map(_is_constant, constant))
    for loss in losses(forwards.base):
        if part := _only_zeros(forwards, loss):
            return part
        if not (is_cut or "norm" in kinds or _are_alike(loss.predictions)):
            continue
        count = loss.targets.shape[0] if loss.targets.ndim else 0
        if count < 2 or loss.predictions.shape[0] != count or not _differ(loss.targets):
            continue
        norm = _norm_before(forwards, kinds, loss) if "norm" in kinds else None
        if norm is not None:
            return Lost("norm", place(norm))
        others = {
            key: each.roll(1, 0)
            for key, each in forwards.inputs.items()
            if each.shape[0] == count and _differ(each)
        }
        kept = (each for key, each in forwards.inputs.items() if key not in others)
        if not others or any(each.is_floating_point() and each.numel() > 1 for each in kept):
            continue  # The rows may be objects in an image, whose features stay as they are.
        found = _lost(forwards, loss, others)
        if found is not None:
            return found
    return None


def _only_zeros(forwards: Forwards, loss: Loss) -> Lost | None:
    """Return where most samples, but not all, lose their features, as only zeros are taken."""
    predictions = loss.predictions
    count = predictions.shape[0] if predictions.ndim else 0
    for operator in reversed(forwards.base[: loss.maker]):
        features = operator.values[0] if operator.values else None
        if operator.name not in _PARTS or features is None or features.ndim != _FEATURES:
            continue
        if features.shape[0] != count or features.shape[1] < _FEWEST:
            continue
        empty = (features == 0).all(1)
        most = int(empty.sum())
        if not (_MOST * count <= most < count) or not _are_alike(predictions[empty]):
            continue
        inputs = [each for each in forwards.inputs.values() if each.shape[0] == count]
        if any(_differ(each[empty]) for each in inputs):
            return Lost("zeros", place(operator), most, count)
    return None


def _is_constant(operator: Operator) -> bool:
    """Return whether the first result of an operator is the same for all samples."""
    made = operator.values[0]
    return made.ndim > 0 and made.numel() > 0 and not _differ(made)


def _are_alike(predictions: torch.Tensor) -> bool:
    """Return whether predictions are the same for all samples, up to rounding."""
    if not predictions.is_floating_point() or not predictions.numel() or not predictions.ndim:
        return False
    apart = (predictions - predictions[:1]).abs().max()
    return bool(apart <= _ROUNDING * predictions.abs().max())


def _differ(tensor: torch.Tensor) -> bool:
    return bool((tensor != tensor.roll(1, 0)).any())


def _lost(forwards: Forwards, loss: Loss, others: dict[object, torch.Tensor]) -> Lost | None:
    changed = forwards.changed(others)
    if changed is None or _is_changed(changed, loss):
        return None
    training = forwards.changed_in_training(others)
    if training is None or _is_changed(training, loss):
        return None
    given = {storage_key(forwards.inputs[key]) for key in others}
    operator = _end(forwards.base, changed, loss, given)
    kind = None if operator is None else _kind(operator)
    if operator is not None and operator.name in _PARTS:
        kind = "unused"
    return None if operator is None or kind is None else Lost(kind, place(operator))


def _norm_before(forwards: Forwards, kinds: list[str | None], loss: Loss) -> Operator | None:
    """Return a norm over one element that lies on each way from an input to the predictions.

    That of groups is not exactly constant: it amplifies the rounding of what it gets.
    """
    operators, found = forwards.base, None
    waiting, seen = [loss.maker], {loss.maker}
    while waiting:
        number = waiting.pop()
        if kinds[number] == "norm":
            found = operators[number]
            continue
        for tensor, maker in zip(operators[number].given, operators[number].makers, strict=True):
            if maker == OUTSIDE and tensor.ndim and not tensor.requires_grad:
                return None
            if maker != OUTSIDE and maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return found


def _is_changed(changed: Sequence[Sequence[torch.Tensor]], loss: Loss) -> bool:
    mask = mask_of(changed, loss.maker, loss.predictions)
    return mask is None or bool(mask.any())


def _end(
    operators: Sequence[Operator],
    changed: Sequence[Sequence[torch.Tensor]],
    loss: Loss,
    given: Container[int],
) -> Operator | None:
    """Return the last operator before a loss whose inputs change, or that gets `given` itself."""
    waiting, seen = [loss.maker], {loss.maker}
    while waiting:
        number = max(waiting)
        waiting.remove(number)
        operator = operators[number]
        makers = {each for each in operator.makers if each != OUTSIDE}
        for tensor, maker in zip(operator.given, operator.makers, strict=True):
            if maker == OUTSIDE:
                is_changed = storage_key(tensor) in given
            else:
                is_changed = _is_changed_result(tensor, operators[maker], changed[maker])
            if is_changed:
                return operator
        waiting += makers - seen
        seen |= makers
    return None


def _is_changed_result(
    tensor: torch.Tensor, maker: Operator, masks: Sequence[torch.Tensor]
) -> bool:
    """Return whether a result of an operator changes; a norm also returns statistics, which may."""
    key = storage_key(tensor)
    own = [mask for made, mask in zip(maker.made, masks, strict=True) if storage_key(made) == key]
    return any(bool(mask.any()) for mask in own or masks)


def _kind(operator: Operator) -> str | None:
    if not operator.given or not operator.values:
        return None
    shape = operator.given[0].shape
    if operator.name in _SOFTMAXES:
        return "softmax" if len(shape) and shape[int(operator.args[1])] == 1 else None
    if operator.name == "native_layer_norm":
        sizes = operator.args[1]
        return "norm" if all(each == 1 for each in sizes) else None
    if operator.name == "native_group_norm":
        *_, channels, size, groups, _ = operator.args
        return "norm" if channels * size == groups else None
    return "saturated" if operator.name in _SATURATING else None
