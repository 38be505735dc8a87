"""The definition of a step: plain PyTorch on any device; `gpu.py` gives the same bits.

Everything is computed in fp32. A moment in bf16 or 8 bits is rounded stochastically, so that it is
right on average: to nearest, a second moment that decays by 0.1 % a step could never decrease.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from halfstep.kernels.memory_order import in_memory_order
from halfstep.kernels.philox import philox
from halfstep.kernels.update.form import GROUP, SPLIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.kernels.update.form import Device, Rule, Tensors

OF_WEIGHT, OF_FIRST, OF_SECOND = range(3)
"""The purposes of random numbers."""


def update(tensors: Tensors, rule: Rule, device: Device) -> None:
    """Take a step: change weights, corrections and moments in place.

    Args:
        tensors: The parameters.
        rule: How they move.
        device: Numbers that are read on the device.
    """
    for index in range(len(tensors.weights)):
        _update(tensors, index, rule, device)


def _update(tensors: Tensors, index: int, rule: Rule, device: Device) -> None:
    parts = [None if part is None else in_memory_order(part) for part in tensors.of(index)]
    weight, gradient, correction, first, second, first_scale, second_scale = parts
    assert weight is not None
    assert gradient is not None
    rate, root, decay = device.numbers[index]
    before = value = exact(weight, correction)
    change = gradient.float()
    if rule.maximize:
        change = -change
    new: list[tuple[torch.Tensor, torch.Tensor]] = []

    def drawn(purpose: int) -> torch.Tensor:
        return random_bits(len(value), device, index, purpose)

    if rule.kind == "adam":
        beta1, beta2, eps, penalty = rule.settings
        if penalty:
            change = change + value * penalty
        assert first is not None
        assert second is not None
        mean = _moment(first, first_scale)
        square = _moment(second, second_scale)
        mean = mean + (change - mean) * (1 - beta1)
        square = square * beta2 + change * change * (1 - beta2)
        value = value * decay - rate * mean / (_square_root(square) * root + eps)
        new += _stored(mean, first, first_scale, drawn(OF_FIRST))
        new += _stored(square, second, second_scale, drawn(OF_SECOND))
    else:
        momentum, dampening, penalty = rule.settings
        if penalty:
            change = change + value * penalty
        if first is not None:
            mean = _moment(first, first_scale) * momentum + change * (1 - dampening)
            change = change + mean * momentum if rule.nesterov else mean
            new += _stored(mean, first, first_scale, drawn(OF_FIRST))
        value = value - rate * change
    rounded = _rounded(value, weight, correction, partial(drawn, OF_WEIGHT))
    new.append((weight, rounded[0]))
    if correction is not None and rounded[1] is not None:
        new.append((correction, rounded[1]))
    skipped = device.found_inf
    if device.lost is not None:
        lost = ((value != before) & (exact(*rounded) == before)).sum()
        device.lost[0].add_(lost if skipped is None else lost * (skipped == 0))
    for target, result in new:
        target.copy_(result if skipped is None else torch.where(skipped != 0, target, result))


def exact(weight: torch.Tensor, correction: torch.Tensor | None) -> torch.Tensor:
    """Return the fp32 values of bf16 weights with their corrections."""
    if correction is None:
        return weight.float()
    if correction.dtype not in SPLIT:
        return weight.float() + correction.float()
    missing = correction.int() << (16 - SPLIT[correction.dtype])
    return ((weight.view(torch.int16).int() << 16) + missing).view(torch.float32)


def split(value: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Split fp32 values into bf16 weights and corrections.

    Args:
        value: fp32.
        dtype: bf16 for a rounding error in bf16. int16 or int8 for the missing 16 or 8 bits, which
            are signed: the weight is rounded to nearest, ties away from zero. With 16 bits,
            `exact` returns the value; with 8 bits, the nearest number of 16 significant bits, which
            differs from the value by at most 2^-16 of it, or 2^-142 if it is subnormal.

    Returns:
        The weights and their corrections.
    """
    if dtype not in SPLIT:
        rounded = value.bfloat16()
        return rounded, (value - rounded.float()).to(dtype)
    kept = SPLIT[dtype]
    bits = torch.where(value.isnan(), torch.nan, value).view(torch.int32)
    if kept == 8:
        bits = (bits + 0x80) >> 8
    # In either case, the weight is the upper bits, rounded by the highest of the lower ones.
    upper = (bits + (1 << (kept - 1))) >> kept
    lower = bits - (upper << kept)
    return upper.to(torch.int16).view(torch.bfloat16), lower.to(dtype)


def rounded_by(value: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Round fp32 to bf16, up or down by 16 random bits for each element, as int32."""
    drawn = ((value.view(torch.int32) + bits) & -(1 << 16)).view(torch.float32)
    return torch.where(value.isfinite(), drawn, value).bfloat16()


def random_bits(elements: int, device: Device, index: int, purpose: int) -> torch.Tensor:
    """Draw 16 random bits for each element of a parameter, int32 `[elements]`.

    Each call of the generator serves 8 adjacent elements, two by each of its words.
    """
    units = torch.arange(-(-elements // 8), device=device.draws.device)
    sequence = device.places[index] * 4 + purpose
    words = philox((device.draws, device.draws >> 32, units, sequence), device.seed)
    halves = torch.stack(words, 1)[..., None] >> torch.tensor([0, 16], device=units.device)
    return (halves.flatten()[:elements] & 0xFFFF).int()


def quantised(
    moment: torch.Tensor, bits: torch.Tensor, *, signed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a moment to 8 bits, so that it is right on average.

    A signed code stands for the square of its share of 127, an unsigned one for the fourth power of
    its share of 255, times the scale of the group. Small elements so have as many codes as large
    ones. A second moment above 0 never becomes 0, which would divide by eps.

    Args:
        moment: fp32 `[elements]`; not negative if unsigned.
        bits: 16 random bits for each element.
        signed: Whether the codes have a sign.

    Returns:
        The codes, int8 or uint8 `[elements]`, and the scales, fp32.
    """
    groups = -(-len(moment) // GROUP)
    padded = torch.nn.functional.pad(moment, (0, groups * GROUP - len(moment)))
    scales = padded.view(groups, GROUP).abs().amax(1)
    inverse = torch.where(scales >= 2.0**-126, 1 / scales, 0.0)
    share = moment.abs() * inverse.repeat_interleave(GROUP)[: len(moment)]
    share = torch.where(share < 1, share, 1.0)  # it may be above 1 by rounding, or NaN
    top = 127 if signed else 255
    place = _square_root(share) if signed else _square_root(_square_root(share))
    code = (place * top).int().clamp(max=top - 1)
    below, above = _level(code, top, signed=signed), _level(code + 1, top, signed=signed)
    goes_up = (bits.float() + 0.5) * 2.0**-16 * (above - below) < share - below
    code += goes_up.int()
    if not signed:
        code = torch.where(moment > 0, code.clamp(min=1), code)
        return code.to(torch.uint8), scales
    return torch.where(moment < 0, -code, code).to(torch.int8), scales


def values_of(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the moment that `quantised` rounded, fp32 `[elements]`."""
    signed = codes.dtype == torch.int8
    levels = _level(codes.int().abs(), 127 if signed else 255, signed=signed)
    levels = torch.where(codes < 0, -levels, levels) if signed else levels
    return levels * scales.repeat_interleave(GROUP)[: len(codes)]


def _level(code: torch.Tensor, top: int, *, signed: bool) -> torch.Tensor:
    share = code.float() * (1 / top)
    return share * share if signed else share * share * (share * share)


def _square_root(value: torch.Tensor) -> torch.Tensor:
    """Return the root, rounded to nearest; torch's own in fp32 may be the number next to it."""
    return value.double().sqrt().float()


def _moment(stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    return stored.float() if scales is None else values_of(stored, scales)


def _stored(
    moment: torch.Tensor, to: torch.Tensor, scales: torch.Tensor | None, bits: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the tensors that keep a moment, and for each the new values."""
    if scales is not None:
        codes, new = quantised(moment, bits, signed=to.dtype == torch.int8)
        return [(to, codes), (scales, new)]
    return [(to, moment if to.dtype == torch.float32 else rounded_by(moment, bits))]


def _rounded(
    value: torch.Tensor,
    weight: torch.Tensor,
    correction: torch.Tensor | None,
    bits: Callable[[], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what is stored of fp32 values: the weights and, if there are any, corrections."""
    if correction is not None:
        return split(value, correction.dtype)
    return value if weight.dtype == torch.float32 else rounded_by(value, bits()), None
