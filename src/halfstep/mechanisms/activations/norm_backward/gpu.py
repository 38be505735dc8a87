"""The backward of a batch norm layer on CUDA, in Triton: three launches, with a rectifier's too.

The tiles are those of packing: a thread has 8 adjacent columns of a group, and of each column all
codes of its word. Sums are added in the order of `reference.py`: rows are halved, and an addition
of two numbers has no order. So the kernels give the same bits, without fused multiply-additions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton  # type: ignore[import-untyped]  # it has no types
from triton import language as tl

from halfstep.kernels.triton_math import to_bf16
from halfstep.mechanisms.activations.norm_backward.form import ELEMENTS, ROWS, tiles_of
from halfstep.mechanisms.activations.packing.gpu import values_of, words_of

if TYPE_CHECKING:
    from halfstep.mechanisms.activations.packing.form import Packed

CHANNELS = 16
"""Channels of a program that adds up sums."""

SOME = 4
"""Parts of a group of a program that sums; of all 8, a thread would have too many sums."""


@triton.jit  # type: ignore[untyped-decorator]
def _halved(total: tl.tensor) -> tl.tensor:
    """Add the second half of the rows, the dimension in the middle, to the first."""
    half: tl.constexpr = total.shape[1] // 2
    return tl.sum(tl.reshape(total, (total.shape[0], 2, half, total.shape[2])), 1)


@triton.jit(do_not_specialize=("groups", "rounds"))  # type: ignore[untyped-decorator]
def _sums_kernel(  # noqa: PLR0913, PLR0917  # a kernel takes no structures
    gradient: tl.tensor,
    mask: tl.tensor,
    stored: tl.tensor,
    target: tl.tensor,
    partial: tl.tensor,
    elements: tl.tensor,
    groups: tl.tensor,
    rounds: tl.tensor,
    group: tl.constexpr,
    bits: tl.constexpr,
    at_once: tl.constexpr,
    stride: tl.constexpr,
    rows: tl.constexpr,
    some: tl.constexpr,
    masks: tl.constexpr,
) -> None:
    size: tl.constexpr = group // 8
    first = tl.program_id(0) * some
    start, number = tl.program_id(1) % stride, tl.program_id(1) // stride
    row = start + stride * tl.arange(0, at_once)
    column = tl.arange(0, size)[None, :]
    place = (row * group)[:, None] + first * size + column
    of_gradient: tl.tuple = ()
    of_product: tl.tuple = ()
    for _ in tl.static_range(some):
        of_gradient = of_gradient + (tl.zeros((1, at_once, size), tl.float32),)  # noqa: RUF005
        of_product = of_product + (tl.zeros((1, at_once, size), tl.float32),)  # noqa: RUF005
    for again in range(rounds):
        begin = (number * rounds + again).to(tl.int64) * (at_once * stride)
        words = words_of(stored, begin, row, groups, group, bits)
        left = elements - begin * group
        kept = 0
        if masks:
            bit = mask + begin * size + (row * size)[:, None] + column
            kept = tl.load(bit, mask=(row < groups - begin)[:, None], other=0).to(tl.int32)
        new_gradient: tl.tuple = ()
        new_product: tl.tuple = ()
        for part in tl.static_range(some):
            inside = place + part * size < left
            at = begin * group + place + part * size
            change = tl.load(gradient + at, mask=inside, other=0.0)
            if masks:
                change = tl.where(((kept >> (first + part)) & 1) != 0, change, 0.0)
                tl.store(target + at, change, mask=inside)
            value = values_of(words, first, part, bits, change.dtype).to(tl.float32)
            change = change.to(tl.float32)
            product = change * tl.where(inside, value, 0.0)
            new_gradient = new_gradient + (of_gradient[part] + change[None],)  # noqa: RUF005
            new_product = new_product + (of_product[part] + product[None],)  # noqa: RUF005
        of_gradient = new_gradient
        of_product = new_product

    lanes: tl.constexpr = rows * stride * group
    row = start + stride * tl.arange(0, rows)
    to = partial + number.to(tl.int64) * lanes + (row * group)[None, :, None]
    to += first * size + column[None]
    parts = tl.num_programs(1) // stride
    for part in tl.static_range(some):
        one, other = of_gradient[part], of_product[part]
        for halving in tl.static_range(7):
            if at_once >> (halving + 1) >= rows:
                one, other = _halved(one), _halved(other)
        tl.store(to + part * size, one)
        tl.store(to + parts.to(tl.int64) * lanes + part * size, other)


@triton.jit(do_not_specialize=("parts", "lanes"))  # type: ignore[untyped-decorator]
def _totals_kernel(  # noqa: PLR0913, PLR0917
    partial: tl.tensor,
    deviation: tl.tensor,
    weight: tl.tensor,
    of_weight: tl.tensor,
    of_bias: tl.tensor,
    factors: tl.tensor,
    channels: tl.tensor,
    parts: tl.tensor,
    lanes: tl.tensor,
    share: tl.tensor,
    weighs: tl.constexpr,
    at_once: tl.constexpr,
    block: tl.constexpr,
) -> None:
    channel = tl.program_id(0) * block + tl.arange(0, block)
    row = tl.arange(0, at_once)[None, :, None]
    inside = channel < channels
    one = tl.zeros((1, at_once, block), tl.float32)
    other = tl.zeros((1, at_once, block), tl.float32)
    width = (lanes * channels).to(tl.int64)
    for lane in range(lanes):
        for begin in range(0, parts, at_once):
            at = (begin + row) * width + lane * channels + channel[None, None, :]
            there = (begin + row < parts) & inside[None, None, :]
            one += tl.load(partial + at, mask=there, other=0.0)
            other += tl.load(partial + parts * width + at, mask=there, other=0.0)
    for halving in tl.static_range(7):
        if at_once >> (halving + 1) >= 1:
            one = _halved(one)
            other = _halved(other)
    sum_of_gradient, sum_of_product = tl.reshape(one, (block,)), tl.reshape(other, (block,))
    scale = tl.load(deviation + channel, mask=inside).to(tl.float32)
    if weighs:
        scale = scale * tl.load(weight + channel, mask=inside).to(tl.float32)
    tl.store(of_weight + channel, sum_of_product, mask=inside)
    tl.store(of_bias + channel, sum_of_gradient, mask=inside)
    tl.store(factors + channel, sum_of_gradient * share, mask=inside)
    tl.store(factors + channels + channel, sum_of_product * share, mask=inside)
    tl.store(factors + 2 * channels + channel, scale, mask=inside)


@triton.jit(do_not_specialize=("groups",))  # type: ignore[untyped-decorator]
def _values_kernel(
    gradient: tl.tensor,
    stored: tl.tensor,
    factors: tl.tensor,
    target: tl.tensor,
    elements: tl.tensor,
    groups: tl.tensor,
    channels: tl.tensor,
    group: tl.constexpr,
    bits: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    size: tl.constexpr = group // 8
    begin = tl.program_id(0).to(tl.int64) * at_once
    row = tl.arange(0, at_once)
    words = words_of(stored, begin, row, groups, group, bits)
    column = tl.arange(0, size)[None, :]
    place = begin * group + (row * group)[:, None] + column
    channel = ((begin + row) * group % channels).to(tl.int32)[:, None] + column
    for part in tl.static_range(8):
        inside = place + part * size < elements
        change = tl.load(gradient + place + part * size, mask=inside, other=0.0)
        value = values_of(words, 0, part, bits, change.dtype).to(tl.float32)
        factor = factors + (channel + part * size) % channels
        result = (change.to(tl.float32) - tl.load(factor)) - value * tl.load(factor + channels)
        result = result * tl.load(factor + 2 * channels)
        if change.dtype == tl.bfloat16:
            result = to_bf16(result)
        tl.store(target + place + part * size, result.to(change.dtype), mask=inside)


def sums(
    gradient: torch.Tensor, mask: torch.Tensor | None, packed: Packed, channels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `reference.sums` on the GPU; with a mask, the group must be that of masks."""
    tiles = tiles_of(gradient.numel(), channels, packed.group)
    masked = torch.empty_like(gradient[:0] if mask is None else gradient)
    partial = gradient.new_empty(2, tiles.parts, tiles.lanes * channels, dtype=torch.float32)
    with torch.cuda.device_of(gradient):  # Triton launches on the current GPU
        _sums_kernel[(8 // SOME, tiles.programs)](
            gradient, packed.stored if mask is None else mask, packed.stored, masked, partial,
            packed.elements, packed.groups, tiles.rounds, packed.group, packed.bits,
            tiles.at_once, tiles.stride, tiles.rows, SOME, mask is not None,
            enable_fp_fusion=False,
        )  # fmt: skip
    return masked, partial


def totals(
    partial: torch.Tensor, share: float, deviation: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `reference.totals` on the GPU."""
    channels = len(deviation)
    of_weight, of_bias = partial.new_empty(channels), partial.new_empty(channels)
    factors = partial.new_empty(3, channels)
    with torch.cuda.device_of(partial):
        _totals_kernel[(-(-channels // CHANNELS),)](
            partial, deviation, deviation if weight is None else weight, of_weight, of_bias,
            factors, channels, partial.size(1), partial.size(2) // channels, share,
            weight is not None, ROWS, CHANNELS, enable_fp_fusion=False,
        )  # fmt: skip
    return of_weight, of_bias, factors


def values(gradient: torch.Tensor, packed: Packed, factors: torch.Tensor) -> torch.Tensor:
    """Compute `reference.values` on the GPU."""
    result = torch.empty_like(gradient)
    with torch.cuda.device_of(gradient):
        _values_kernel[(-(-packed.elements // ELEMENTS),)](
            gradient, packed.stored, factors, result, packed.elements, packed.groups,
            factors.size(1), packed.group, packed.bits, ELEMENTS // packed.group,
            enable_fp_fusion=False,
        )  # fmt: skip
    return result
