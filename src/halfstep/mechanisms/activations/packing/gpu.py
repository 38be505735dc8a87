"""Packing on CUDA, in Triton: one pass over memory and one launch in each direction.

A thread has 8 adjacent columns of a group, and of each column all codes of its word. So it loads
and stores 16 bytes at a time, and builds the words in its registers; only the lowest and the
highest value of a group come from other threads, its 3 neighbours. Four words of random numbers
serve 16 elements. The kernels give the same bits as `reference.py`, so they must not fuse
multiplications with additions, which would round once where the reference rounds twice.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]  # it has no types
from triton import language as tl

from halfstep.kernels.triton_math import least, most, signed, to_bf16
from halfstep.mechanisms.activations.packing.form import (
    GROUPS_A_FORWARD,
    MASK_GROUP,
    Draw,
    Normaliser,
    Packed,
    unwritten,
    unwritten_mask,
)

ELEMENTS_A_PROGRAM = 8192
"""Elements of a program of 128 threads: 64 a thread, all in its registers."""

_NUMBERS = ("groups", "seed_low", "seed_high", "stream", "first")
"""Arguments that Triton must not specialise: it turns a 1 into a constant, which has no `to`."""

# Triton evaluates the annotations of a kernel, and accepts only its own names in them.


@triton.jit  # type: ignore[untyped-decorator]
def _random_words(
    seed: tl.tensor, stream: tl.tensor, counter: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Draw four words for each counter, `[groups, counters]`, as `[groups, 2 * counters]` twice."""
    zero = tl.zeros(counter.shape, tl.uint32)
    words = tl.philox(
        seed,
        (counter & 0xFFFFFFFF).to(tl.uint32),
        (counter >> 32).to(tl.uint32),
        zero + stream.to(tl.uint32),
        zero,
    )
    return tl.interleave(words[0], words[1]), tl.interleave(words[2], words[3])


@triton.jit  # type: ignore[untyped-decorator]
def _fraction(words: tl.tensor, window: tl.constexpr) -> tl.tensor:
    """Return 1 + (drawn + 0.5) / 2^16, where drawn is 16 bits of a word from bit 8 * window on."""
    if window == 0:
        moved = words << 7
    elif window == 1:
        moved = words >> 1
    elif window == 2:
        moved = words >> 9
    else:
        moved = ((words << 8) | (words >> 24)) << 7
    return ((moved & 0x7FFF80) | 0x3F800040).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def _normalised(
    value: tl.tensor, scale: tl.tensor, shift: tl.tensor, channel: tl.tensor
) -> tl.tensor:
    """Normalise values of channels, in their own format."""
    exact = value.to(tl.float32) * tl.load(scale + channel) - tl.load(shift + channel)
    if value.dtype == tl.bfloat16:
        exact = to_bf16(exact)
    return exact.to(value.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _write_mask(
    source: tl.tensor,
    bits: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    begin: tl.tensor,
    elements: tl.tensor,
    group: tl.constexpr,
) -> None:
    """Write the masks of the groups from `begin` on."""
    words: tl.constexpr = group // 8
    rows = begin + row[:, None]
    word = tl.zeros((row.shape[0], words), tl.int32)
    for part in tl.static_range(8):
        place = rows * group + part * words + column[None, :]
        value = tl.load(source + place, mask=place < elements, other=0).to(tl.float32)
        word |= tl.where(value <= 0.0, 0, 1 << part)
    to = bits + rows * words + column[None, :]
    tl.store(to, word.to(tl.uint8), mask=rows * group < elements)


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _pack_kernel(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917  # a kernel takes no structures
    source: tl.tensor,
    stored: tl.tensor,
    forwards: tl.tensor,
    elements: tl.tensor,
    groups: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    stream: tl.tensor,
    first: tl.tensor,
    scale: tl.tensor,
    shift: tl.tensor,
    channels: tl.tensor,
    rectified: tl.tensor,
    mask: tl.tensor,
    group: tl.constexpr,
    bits: tl.constexpr,
    at_once: tl.constexpr,
    groups_a_forward: tl.constexpr,
    normalises: tl.constexpr,
    rectifies: tl.constexpr,
) -> None:
    words: tl.constexpr = group // 8
    top: tl.constexpr = 2**bits - 1
    begin = tl.program_id(0).to(tl.int64) * at_once
    row = tl.arange(0, at_once)
    column = tl.arange(0, words)
    at = begin * group + row[:, None] * group + column[None, :]
    end = tl.load(source + elements - 1)
    channel = tl.zeros((at_once, words), tl.int32)
    if normalises:
        end = _normalised(end, scale, shift, channels - 1)
        channel = ((begin + row) * group % channels).to(tl.int32)[:, None] + column[None, :]

    lowest = tl.full((at_once, words), float("inf"), tl.float32)
    highest = tl.full((at_once, words), float("-inf"), tl.float32)
    for part in tl.static_range(8):
        place = at + part * words
        value = tl.load(source + place, mask=place < elements, other=end)
        if normalises:
            value = _normalised(value, scale, shift, (channel + part * words) % channels)
            value = tl.where(place < elements, value, end)
        value = value.to(tl.float32)
        lowest = least(lowest, value)
        highest = most(highest, value)
    lowest = tl.reduce(lowest, 1, least)
    highest = tl.reduce(highest, 1, most)

    word = (lowest + 0.0).to(tl.int32, bitcast=True)
    low = (word >> 16) + (((word & 0xFFFF) != 0) & (word < 0)).to(tl.int32)
    start = (low << 16).to(tl.float32, bitcast=True)
    word = ((highest - start + 0.0) * (1.0 / top)).to(tl.int32, bitcast=True)
    step = (word >> 16) + ((word & 0xFFFF) != 0).to(tl.int32)
    step = tl.where(step < 0x0080, 0, step)  # the inverse of a subnormal may overflow
    # Comparisons with NaN are false.
    usable = (lowest > float("-inf")) & (highest < float("inf")) & (step < 0x7F80)
    width = (step << 16).to(tl.float32, bitcast=True)
    # The inner `where` avoids a division by zero: a group of equal values has a step of 0.
    inverse = tl.where(step > 0, tl.div_rn(1.0, tl.where(step > 0, width, 1.0)), 0.0)

    seed = (seed_high.to(tl.uint64) << 32) | (seed_low.to(tl.uint64) & 0xFFFFFFFF)
    before = first + tl.load(forwards) * groups_a_forward + begin
    counters: tl.constexpr = words // 2
    taken: tl.constexpr = counters if group >= 128 else 8
    counter = (before + row)[:, None] * taken + tl.arange(0, counters)[None, :]
    even, odd = _random_words(seed, stream, counter)
    if group < 128:  # half of the words remain unused
        odd, _ = _random_words(seed, stream, counter + counters)

    codes = tl.zeros((at_once, words), tl.int32)
    others = tl.zeros((at_once, words), tl.int32)  # with 8 bits: the words of the odd parts
    for part in tl.static_range(8):
        place = at + part * words
        value = tl.load(source + place, mask=place < elements, other=end)
        if normalises:
            value = _normalised(value, scale, shift, (channel + part * words) % channels)
            value = tl.where(place < elements, value, end)
        value = value.to(tl.float32)
        fraction = _fraction(odd if part % 2 else even, part // 2)
        level = ((value - start[:, None]) * inverse[:, None] + fraction).to(tl.int32)
        if bits < 8:
            codes += level << (part * bits)
        elif part % 2:
            others += tl.minimum(level, top + 1) << (part // 2 * bits)
        else:
            codes += tl.minimum(level, top + 1) << (part // 2 * bits)
    if rectifies:
        _write_mask(rectified, mask, row, column, begin, elements, group)
    ones: tl.constexpr = 0x01010101 if bits == 8 else (2 ** (8 * bits) - 1) // top
    codes = tl.where(usable[:, None], codes - ones, 0)

    stored_row = begin + row
    inside = stored_row < groups
    base = stored + stored_row[:, None] * (group * bits // 8)
    if bits <= 3:
        to = base.to(tl.pointer_type(tl.int16), bitcast=True) + column[None, :]
        tl.store(to, codes.to(tl.int16), mask=inside[:, None])
    else:
        to = base.to(tl.pointer_type(tl.int32), bitcast=True) + column[None, :]
        tl.store(to, codes, mask=inside[:, None])
    if bits == 3:
        third = (codes >> 16).to(tl.uint8)
        tl.store(base + (2 * words + column[None, :]), third, mask=inside[:, None])
    if bits == 8:
        others = tl.where(usable[:, None], others - ones, 0)
        tl.store(to + words, others, mask=inside[:, None])
    scales = stored + groups.to(tl.int64) * (group * bits // 8)
    scales = scales.to(tl.pointer_type(tl.int16), bitcast=True)
    scales += stored_row
    tl.store(scales, tl.where(usable, low, 0x7FC0).to(tl.int16), mask=inside)
    tl.store(scales + groups, tl.where(usable, step, 0x7FC0).to(tl.int16), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def words_of(
    stored: tl.tensor,
    begin: tl.tensor,
    row: tl.tensor,
    groups: tl.tensor,
    group: tl.constexpr,
    bits: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Load the groups `begin + row`: the words of codes, the lowest levels and the steps.

    With 8 bits, there are two words, of the even and of the odd parts; otherwise twice the same.
    """
    words: tl.constexpr = group // 8
    inside = row < groups - begin
    column = tl.arange(0, words)[None, :]
    base = stored + begin * (group * bits // 8) + (row * (group * bits // 8))[:, None]
    if bits <= 3:
        source = base.to(tl.pointer_type(tl.uint16), bitcast=True) + column
    else:
        source = base.to(tl.pointer_type(tl.int32), bitcast=True) + column
    even = tl.load(source, mask=inside[:, None], other=0).to(tl.int32)
    if bits == 3:
        third = tl.load(base + (2 * words + column), mask=inside[:, None], other=0)
        even |= third.to(tl.int32) << 16
    odd = even
    if bits == 8:
        odd = tl.load(source + words, mask=inside[:, None], other=0)
    scales = stored + groups.to(tl.int64) * (group * bits // 8)
    scales = scales.to(tl.pointer_type(tl.int16), bitcast=True) + begin + row
    low = (tl.load(scales, mask=inside, other=0).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    step = tl.load(scales + groups, mask=inside, other=0).to(tl.int32) << 16
    return even, odd, low, step.to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator]
def values_of(
    words: tl.tuple,
    first: tl.tensor,
    part: tl.constexpr,
    bits: tl.constexpr,
    kind: tl.constexpr,
) -> tl.tensor:
    """Return the values of a part of groups, `first + part`, in a format; `first` is even."""
    even, odd, low, step = words
    if bits == 8:
        code = ((odd if part % 2 else even) >> ((first // 2 + part // 2) * bits)) & 0xFF
    else:
        code = (even >> ((first + part) * bits)) & (2**bits - 1)
    value = low[:, None] + code.to(tl.float32) * step[:, None]
    if kind == tl.float16:
        value = most(least(value, 65504.0), -65504.0)
    elif kind == tl.bfloat16:
        value = to_bf16(value)
    return value.to(kind)


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _unpack_kernel(
    stored: tl.tensor,
    target: tl.tensor,
    elements: tl.tensor,
    groups: tl.tensor,
    group: tl.constexpr,
    bits: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    size: tl.constexpr = group // 8
    begin = tl.program_id(0).to(tl.int64) * at_once
    row = tl.arange(0, at_once)
    words = words_of(stored, begin, row, groups, group, bits)
    place = begin * group + (row * group)[:, None] + tl.arange(0, size)[None, :]
    for part in tl.static_range(8):
        value = values_of(words, 0, part, bits, target.dtype.element_ty)
        tl.store(target + place + part * size, value, mask=place + part * size < elements)


@triton.jit  # type: ignore[untyped-decorator]
def _mask_kernel(
    source: tl.tensor,
    bits: tl.tensor,
    elements: tl.tensor,
    group: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    begin = tl.program_id(0).to(tl.int64) * at_once
    row, column = tl.arange(0, at_once), tl.arange(0, group // 8)
    _write_mask(source, bits, row, column, begin, elements, group)


@triton.jit  # type: ignore[untyped-decorator]
def _masked_kernel(
    source: tl.tensor,
    bits: tl.tensor,
    target: tl.tensor,
    elements: tl.tensor,
    group: tl.constexpr,
    at_once: tl.constexpr,
) -> None:
    words: tl.constexpr = group // 8
    row = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
    column = tl.arange(0, words)
    kept = tl.load(
        bits + row[:, None] * words + column[None, :], mask=row[:, None] * group < elements
    ).to(tl.int32)
    for part in tl.static_range(8):
        place = row[:, None] * group + part * words + column[None, :]
        value = tl.load(source + place, mask=place < elements)
        value = tl.where((kept & (1 << part)) != 0, value, 0.0)
        tl.store(target + place, value, mask=place < elements)


def mask(values: torch.Tensor) -> torch.Tensor:
    """Compute `reference.mask` on the GPU."""
    bits = unwritten_mask(values)
    source = values.view(torch.uint8) if values.dtype == torch.bool else values
    with torch.cuda.device_of(values):  # Triton launches on the current GPU
        _mask_kernel[_programs(values.numel())](source, bits, values.numel(), MASK_GROUP, _MASKS)
    return bits


def masked(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Compute `reference.masked` on the GPU."""
    result = torch.empty_like(values)
    with torch.cuda.device_of(values):
        _masked_kernel[_programs(values.numel())](
            values, bits, result, values.numel(), MASK_GROUP, _MASKS
        )
    return result


def pack(flat: torch.Tensor, bits: int, group: int, draw: Draw) -> Packed:
    """Compute `reference.pack` on the GPU; `group` must be a power of two."""
    return _packed(flat, bits, group, draw, None, flat)


def pack_normalised(
    flat: torch.Tensor, bits: int, group: int, draw: Draw, by: Normaliser
) -> tuple[Packed, torch.Tensor]:
    """Compute `reference.normalised`, `pack` of it, and the mask of `by.rectified`, in one launch.

    With `by.rectified`, `group` must be that of masks.
    """
    mask = unwritten_mask(flat[:0] if by.rectified is None else by.rectified)
    return _packed(flat, bits, group, draw, by, mask), mask


def _packed(
    flat: torch.Tensor,
    bits: int,
    group: int,
    draw: Draw,
    by: Normaliser | None,
    mask: torch.Tensor,
) -> Packed:
    packed = unwritten(flat, bits, group)
    forwards = draw.forwards
    if forwards is None:
        forwards = torch.zeros((), dtype=torch.int64, device=flat.device)
    # A pointer that is not read may be any.
    scale, shift, rectified = (flat, flat, None) if by is None else by
    with torch.cuda.device_of(flat):
        _pack_kernel[_programs(packed.elements)](
            flat, packed.stored, forwards, packed.elements, packed.groups,
            signed(draw.seed), signed(draw.seed >> 32), draw.stream, draw.counter,
            scale, shift, 16 if by is None else len(scale),
            flat if rectified is None else rectified, mask,
            group, bits, ELEMENTS_A_PROGRAM // group, GROUPS_A_FORWARD,
            by is not None, rectified is not None, enable_fp_fusion=False,
        )  # fmt: skip
    return packed


def unpack(packed: Packed) -> torch.Tensor:
    """Compute `reference.unpack` on the GPU."""
    flat = packed.stored.new_empty(packed.elements, dtype=packed.dtype)
    with torch.cuda.device_of(flat):
        _unpack_kernel[_programs(packed.elements)](
            packed.stored, flat, packed.elements, packed.groups,
            packed.group, packed.bits, ELEMENTS_A_PROGRAM // packed.group, enable_fp_fusion=False,
        )  # fmt: skip
    return flat


_MASKS = ELEMENTS_A_PROGRAM // MASK_GROUP


def _programs(elements: int) -> tuple[int]:
    return (-(-elements // ELEMENTS_A_PROGRAM),)
