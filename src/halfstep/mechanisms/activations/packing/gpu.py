"""Packing on CUDA, in Triton: one pass over memory in each direction, and one program per group.

The kernels give the same bits as `reference.py`. So they must not fuse multiplications with
additions, which would round once where the reference rounds twice.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]  # it has no types
from triton import language as tl

from halfstep.mechanisms.activations.packing.form import (
    GROUPS_A_FORWARD,
    MASK_GROUP,
    Draw,
    Packed,
    unwritten,
    unwritten_mask,
)

_NUMBERS = ("seed_low", "seed_high", "stream", "first")
"""Arguments that Triton must not specialise: it turns a 1 into a constant, which has no `to`."""

# Triton evaluates the annotations of a kernel, and accepts only its own names in them.


@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _pack_kernel(  # noqa: PLR0913, PLR0917  # a kernel takes no structures
    source: tl.tensor,
    words_at: tl.tensor,
    halves_at: tl.tensor,
    low: tl.tensor,
    step: tl.tensor,
    elements: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    stream: tl.tensor,
    first: tl.tensor,
    forwards: tl.tensor,
    group: tl.constexpr,
    bits: tl.constexpr,
    groups_a_forward: tl.constexpr,
) -> None:
    program = tl.program_id(0).to(tl.int64)
    at = program * group + tl.arange(0, group)
    values = tl.load(source + tl.minimum(at, elements - 1)).to(tl.float32)
    magnitudes = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    finite = tl.max(magnitudes, 0) < 0x7F800000
    values = tl.where(finite, values, 0.0)
    top: tl.constexpr = 2**bits - 1

    lowest = (tl.min(values, 0) + 0.0).to(tl.int32, bitcast=True)
    cut = ((lowest & 0xFFFF) != 0) & (lowest < 0)
    lowest = ((lowest >> 16) + cut.to(tl.int32)) << 16
    start = lowest.to(tl.float32, bitcast=True)
    width = tl.div_rn(tl.max(values, 0) - start + 0.0, float(top)).to(tl.int32, bitcast=True)
    width = ((width >> 16) + ((width & 0xFFFF) != 0).to(tl.int32)) << 16
    width = tl.where(width < 0x00800000, 0, width)  # the inverse of a subnormal may overflow
    usable = finite & (width < 0x7F800000)
    step_width = width.to(tl.float32, bitcast=True)
    # The inner `where` avoids a division by zero: a group of equal values has a step of 0.
    inverse = tl.where(width > 0, tl.div_rn(1.0, tl.where(width > 0, step_width, 1.0)), 0.0)

    lanes: tl.constexpr = group // 16 if group >= 128 else 8
    before = first + tl.load(forwards) * groups_a_forward
    counter = (before + program) * lanes + tl.arange(0, lanes)
    zero = tl.zeros((lanes,), tl.uint32)
    words = tl.philox(
        (seed_high.to(tl.uint64) << 32) | (seed_low.to(tl.uint64) & 0xFFFFFFFF),
        (counter & 0xFFFFFFFF).to(tl.uint32),
        (counter >> 32).to(tl.uint32),
        zero + stream.to(tl.uint32),
        zero,
    )
    drawn = tl.join(words[0], words[1])
    # From the four words of each counter: first words 0 and 1 of all counters, then words 2 and 3.
    if group >= 128:
        drawn = tl.permute(tl.join(drawn, tl.join(words[2], words[3])), (2, 0, 1))
    word = tl.reshape(drawn, (1, group // 4))
    window = tl.arange(0, 4)[:, None]
    turned = (word >> (8 * window).to(tl.uint32)) | tl.where(window == 3, word << 8, 0)
    bits_drawn = tl.reshape(turned & 0xFFFF, (group,)).to(tl.int32)
    part = 1.0 + (bits_drawn.to(tl.float32) + 0.5) * (1.0 / 65536)
    level = ((values - start) * inverse + part).to(tl.int32)
    code = tl.where(usable, tl.minimum(level, top + 1) - 1, 0)

    size: tl.constexpr = group * bits // 32
    _write_plane(code, words_at + program * size, group, 0, 2 if bits == 3 else bits, 32)
    if bits == 3:
        _write_plane(code, halves_at + program * (2 * size) + group // 8, group, 2, 1, 16)
    tl.store(low + program, tl.where(usable, lowest >> 16, 0x7FC0).to(tl.int16))
    tl.store(step + program, tl.where(usable, width >> 16, 0x7FC0).to(tl.int16))


@triton.jit  # type: ignore[untyped-decorator]
def _write_plane(
    code: tl.tensor,
    to: tl.tensor,
    group: tl.constexpr,
    shift: tl.constexpr,
    width: tl.constexpr,
    word: tl.constexpr,
) -> None:
    parts: tl.constexpr = word // width
    size: tl.constexpr = group // parts
    each = tl.reshape((code >> shift) & (2**width - 1), (parts, size))
    places = (tl.arange(0, parts) * width)[:, None]
    tl.store(to + tl.arange(0, size), tl.sum(each << places, 0).to(to.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _unpack_kernel(
    words_at: tl.tensor,
    halves_at: tl.tensor,
    low: tl.tensor,
    step: tl.tensor,
    target: tl.tensor,
    elements: tl.tensor,
    group: tl.constexpr,
    bits: tl.constexpr,
    half: tl.constexpr,
) -> None:
    program = tl.program_id(0).to(tl.int64)
    size: tl.constexpr = group * bits // 32
    code = _read_plane(words_at + program * size, group, 2 if bits == 3 else bits, 32)
    if bits == 3:
        code |= _read_plane(halves_at + program * (2 * size) + group // 8, group, 1, 16) << 2
    start = (tl.load(low + program).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    width = (tl.load(step + program).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    values = start + code.to(tl.float32) * width
    at = program * group + tl.arange(0, group)
    if half == "fp16":  # clamped by comparisons, so that NaN stays NaN
        values = tl.where(values > 65504.0, 65504.0, tl.where(values < -65504.0, -65504.0, values))
        tl.store(target + at, values.to(tl.float16), mask=at < elements)
    elif half == "bf16":  # rounded here, because the cast of Triton's interpreter truncates
        word = values.to(tl.int32, bitcast=True)
        nearest = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
        nearest = tl.where(values == values, nearest, 0x7FC0).to(tl.int16)  # noqa: PLR0124  # NaN
        tl.store(target + at, nearest, mask=at < elements)
    else:
        tl.store(target + at, values, mask=at < elements)


@triton.jit  # type: ignore[untyped-decorator]
def _read_plane(
    source: tl.tensor, group: tl.constexpr, width: tl.constexpr, word: tl.constexpr
) -> tl.tensor:
    size: tl.constexpr = group * width // word
    element = tl.arange(0, group)
    read = tl.load(source + element % size).to(tl.int32)
    return (read >> (element // size * width)) & (2**width - 1)


@triton.jit  # type: ignore[untyped-decorator]
def _mask_kernel(
    source: tl.tensor, bits: tl.tensor, elements: tl.tensor, group: tl.constexpr
) -> None:
    program = tl.program_id(0).to(tl.int64)
    at = program * group + tl.arange(0, group)
    values = tl.load(source + at, mask=at < elements, other=0).to(tl.float32)
    code = tl.where(values <= 0.0, 0, 1)
    _write_plane(code, bits + program * (group // 16), group, 0, 1, 16)


@triton.jit  # type: ignore[untyped-decorator]
def _masked_kernel(
    source: tl.tensor, bits: tl.tensor, target: tl.tensor, elements: tl.tensor, group: tl.constexpr
) -> None:
    program = tl.program_id(0).to(tl.int64)
    at = program * group + tl.arange(0, group)
    values = tl.load(source + at, mask=at < elements)
    kept = _read_plane(bits + program * (group // 16), group, 1, 16)
    tl.store(target + at, tl.where(kept != 0, values, 0.0), mask=at < elements)


def mask(values: torch.Tensor) -> torch.Tensor:
    """Compute `reference.mask` on the GPU."""
    bits = unwritten_mask(values)
    source = values.view(torch.uint8) if values.dtype == torch.bool else values
    with torch.cuda.device_of(values):  # Triton launches on the current GPU
        _mask_kernel[(len(bits),)](source, bits.view(torch.int16), values.numel(), group=MASK_GROUP)
    return bits


def masked(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Compute `reference.masked` on the GPU."""
    result = torch.empty_like(values)
    with torch.cuda.device_of(values):
        _masked_kernel[(len(bits),)](
            values, bits.view(torch.int16), result, values.numel(), group=MASK_GROUP
        )
    return result


def pack(flat: torch.Tensor, bits: int, group: int, draw: Draw) -> Packed:
    """Compute `reference.pack` on the GPU; `group` must be a power of two."""
    packed = unwritten(flat, bits, group)
    forwards = draw.forwards
    if forwards is None:
        forwards = torch.zeros((), dtype=torch.int64, device=flat.device)
    with torch.cuda.device_of(flat):
        _pack_kernel[(len(packed.low),)](
            flat, *_as_words(packed), packed.elements,
            draw.seed & 0xFFFFFFFF, draw.seed >> 32, draw.stream, draw.counter, forwards,
            group=group, bits=bits, groups_a_forward=GROUPS_A_FORWARD, enable_fp_fusion=False,
        )  # fmt: skip
    return packed


def unpack(packed: Packed) -> torch.Tensor:
    """Compute `reference.unpack` on the GPU."""
    flat = packed.codes.new_empty(packed.elements, dtype=packed.dtype)
    half = {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(packed.dtype, "")
    target = flat.view(torch.int16) if half == "bf16" else flat
    with torch.cuda.device_of(flat):
        _unpack_kernel[(len(packed.low),)](
            *_as_words(packed), target, packed.elements,
            group=packed.group, bits=packed.bits, half=half, enable_fp_fusion=False,
        )  # fmt: skip
    return flat


def _as_words(packed: Packed) -> tuple[torch.Tensor, ...]:
    """Return views: the codes as int32 and as int16 words, `low` and `step` as int16 bits."""
    codes, low, step = packed.tensors
    return (
        codes.view(torch.int32),
        codes.view(torch.int16),
        low.view(torch.int16),
        step.view(torch.int16),
    )
