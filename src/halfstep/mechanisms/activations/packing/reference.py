"""The definition of packing, in plain PyTorch on any device; the other kernels give the same bits.

A tensor is divided into groups of adjacent elements. Each group has its own lowest level and step
between levels, both in bf16. The lowest level is rounded down and the step up, so that the levels
cover the group. An element is rounded at random to one of the two levels around it, so that it is
right on average.
"""

from __future__ import annotations

import torch

from halfstep.kernels.philox import philox
from halfstep.mechanisms.activations.packing.form import MASK_GROUP, Draw, Normaliser, Packed

PLANES = {
    1: (torch.uint8,),
    2: (torch.int16,),
    3: (torch.int16, torch.uint8),
    4: (torch.int32,),
    8: (torch.int32,),
}
"""The dtypes in which a word of codes is stored, for each number of bits, lowest bits first.

The parts of all words of a group in one dtype are adjacent."""


def pack(flat: torch.Tensor, bits: int, group: int, draw: Draw) -> Packed:
    """Round a tensor stochastically to `bits` bits per element.

    Args:
        flat: fp32, fp16 or bf16, shape `[elements]`.
        bits: 2, 3, 4 or 8.
        group: Number of elements that share levels; a multiple of 64.
        draw: The random numbers of the rounding.

    Returns:
        The packed tensor. In a group with inf or NaN, lowest level and step are NaN.
    """
    groups = -(-flat.numel() // group)
    values = flat.detach().float()
    missing = groups * group - flat.numel()
    if missing:
        values = torch.cat([values, values[-1:].expand(missing)])
    values = values.view(groups, group)
    top = 2**bits - 1
    low = _bf16_below(values.amin(1) + 0.0)  # not -0.0
    # In fp32, 1 / top is above the exact number, so top steps are never less than the span.
    step = _bf16_above((values.amax(1) - low.float() + 0.0) * (1 / top))
    step = torch.where(step < 2.0**-126, 0, step)  # the inverse of a subnormal may overflow
    usable = values.isfinite().all(1) & step.isfinite()
    width = torch.where(usable, step, 0).float()[:, None]
    inverse = torch.where(width > 0, 1 / width, 0.0)
    part = 1 + (random_bits(groups, group, draw, flat.device) + 0.5) * 2.0**-16
    level = ((values - low.float()[:, None]) * inverse + part).nan_to_num(1, top + 1, 1)
    codes = torch.where(usable[:, None], level.to(torch.int32).clamp(max=top + 1) - 1, 0)
    unusable = torch.full_like(low, torch.nan)
    parts = (
        write_codes(codes.to(torch.uint8), bits),
        torch.where(usable, low, unusable),
        torch.where(usable, step, unusable),
    )
    stored = torch.cat([part.flatten().view(torch.uint8) for part in parts])
    return Packed(stored, bits, group, flat.numel(), flat.dtype)


def normalised(flat: torch.Tensor, normaliser: Normaliser) -> torch.Tensor:
    """Return a tensor `[elements]` whose channels are normalised, in the dtype of `flat`."""
    rows = flat.view(-1, len(normaliser.scale))
    result: torch.Tensor = (rows * normaliser.scale).sub_(normaliser.shift).to(flat.dtype)
    return result.flatten()


def unpack(packed: Packed) -> torch.Tensor:
    """Return the values of a packed tensor, shape `[elements]`, rounded to nearest in its dtype."""
    levels = read_codes(packed.codes, packed.bits, packed.group).float()
    values = packed.low.float()[:, None] + levels * packed.step.float()[:, None]
    if packed.dtype == torch.float16:
        values = values.clamp(-65504, 65504)
    return values.flatten()[: packed.elements].to(packed.dtype)


def mask(values: torch.Tensor) -> torch.Tensor:
    """Return one bit per element: 1 if the element is positive, NaN or True.

    Args:
        values: Floating-point or bool tensor, shape `[elements]`.

    Returns:
        uint8 `[groups, 32]`, for groups of 256 elements.
    """
    codes = values if values.dtype == torch.bool else ~(values <= 0)
    groups = -(-values.numel() // MASK_GROUP)
    padded = codes.new_zeros(groups * MASK_GROUP, dtype=torch.uint8)
    padded[: values.numel()] = codes
    return write_codes(padded.view(groups, MASK_GROUP), 1)


def masked(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Return `values`, shape `[elements]`, with 0 where the bit of `mask` is not set."""
    kept = read_codes(bits, 1, MASK_GROUP).flatten()[: values.numel()]
    return torch.where(kept.bool(), values, 0)


def write_codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack codes, uint8 `[groups, group]`, into bytes.

    Word j of a group contains elements j, j + words, j + 2 * words, ... from its lowest bit on: 8
    of them, or 4 with 8 bits.
    """
    places = _places(codes, bits)
    word = (codes.view(len(codes), len(places), -1).long() << places).sum(1)
    planes = []
    for dtype in PLANES[bits]:
        planes.append(word.to(dtype).view(torch.uint8))  # a cast keeps the lowest bits
        word >>= 8 * dtype.itemsize
    return torch.cat(planes, 1)


def read_codes(stored: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Return the codes that `write_codes` packed, uint8 `[groups, group]`."""
    places = _places(stored, bits)
    words = group // len(places)
    word = torch.zeros(len(stored), words, dtype=torch.int64, device=stored.device)
    at = shift = 0
    for dtype in PLANES[bits]:
        size = words * dtype.itemsize
        plane = stored[:, at : at + size].contiguous().view(dtype).long()
        word |= (plane & (1 << 8 * dtype.itemsize) - 1) << shift
        at, shift = at + size, shift + 8 * dtype.itemsize
    codes: torch.Tensor = (word[:, None] >> places) & (2**bits - 1)
    return codes.to(torch.uint8).view(len(stored), group)


def _places(like: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the first bit of each code of a word, `[codes, 1]`."""
    return torch.arange(0, min(8 * bits, 32), bits, device=like.device)[:, None]


def random_bits(groups: int, group: int, draw: Draw, device: torch.device) -> torch.Tensor:
    """Draw 16 random bits per element, `[groups, group]`, with Philox4x32, 10 rounds.

    A group uses `lanes` counters. Its words are the first two words of all these counters, followed
    by the last two words of all these counters. Element e uses 16 bits of word e % (group / 4),
    from bit 8 * (e // (group / 4)) on; after the highest bit, they continue at bit 0. So the lower
    8 bits of one element are the upper 8 bits of another. Each element is right on average to 2^-17
    of a step, and the covariance of two elements is below 2^-10 of a step squared.
    """
    lanes = max(8, group // 16)
    counters = torch.arange(groups * lanes, device=device) + draw.first * lanes
    words = philox((counters, counters >> 32, draw.stream, 0), draw.seed)
    drawn = torch.stack(words, 1).view(groups, lanes, 2, 2)
    in_order = drawn.transpose(1, 2).reshape(groups, 4 * lanes)[:, : group // 4]
    twice = in_order | in_order << 32
    return torch.cat([(twice >> 8 * window) & 0xFFFF for window in range(4)], 1).float()


def _bf16_below(value: torch.Tensor) -> torch.Tensor:
    bits = value.view(torch.int32)
    cut = (bits & 0xFFFF) != 0
    return (((bits >> 16) + (cut & (bits < 0))).to(torch.int16)).view(torch.bfloat16)


def _bf16_above(not_negative: torch.Tensor) -> torch.Tensor:
    bits = not_negative.view(torch.int32)
    cut = (bits & 0xFFFF) != 0
    return ((bits >> 16) + cut).to(torch.int16).view(torch.bfloat16)
