"""What packing computes, in plain PyTorch on any device; the other kernels give the same bits.

A tensor is packed in groups of neighbouring elements, each with a lowest value and a step of its
own, both in bf16: the lowest rounded down and the step up, so that the levels span the group. An
element becomes one of the two levels around it at random, such that it is right on average.
"""

from __future__ import annotations

import torch

PLANES = {
    1: ((0, 1),),
    2: ((0, 2),),
    3: ((0, 2), (2, 1)),
    4: ((0, 4),),
    8: ((0, 8),),
}
"""How the bits of a code are stored, by their number: from which bit on, and how many."""

MASK_GROUP = 256
"""Elements whose bits of a mask lie together."""

_WORD = 0xFFFFFFFF


def pack(
    flat: torch.Tensor, bits: int, group: int, seed: int, stream: int, counter: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Round a tensor to `bits` bits an element.

    Args:
        flat: fp32, fp16 or bf16, shape `[elements]`.
        bits: 1 to 8, as `PLANES` has them.
        group: Elements that share their levels; a multiple of 64.
        seed: Key of the random numbers.
        stream: Which of 2^32 independent sequences they are from.
        counter: How many groups drew from the sequence before.

    Returns:
        Codes, uint8 `[groups, group * bits / 8]`; the lowest value of each group and the step
        between its levels, bf16 `[groups]`. A group with inf or NaN has NaN for both.
    """
    groups = -(-flat.numel() // group)
    values = flat.detach().float()
    missing = groups * group - flat.numel()
    if missing:
        values = torch.cat([values, values[-1:].expand(missing)])
    values = values.view(groups, group)
    top = 2**bits - 1
    low = _bf16_below(values.amin(1) + 0.0)  # not -0.0
    step = _bf16_above((values.amax(1) - low.float() + 0.0) / top)
    step = torch.where(step < 2.0**-126, 0, step)  # its inverse could not be had
    usable = values.isfinite().all(1) & step.isfinite()
    width = torch.where(usable, step, 0).float()[:, None]
    inverse = torch.where(width > 0, 1 / width, 0.0)
    part = (random_bits(groups, group, seed, stream, counter, flat.device) + 0.5) * 2.0**-16
    level = ((values - low.float()[:, None]) * inverse + part).nan_to_num(0, top, 0)
    codes = torch.where(usable[:, None], level.to(torch.int32).clamp(max=top), 0).to(torch.uint8)
    unusable = torch.full_like(low, torch.nan)
    return (
        write_codes(codes, bits),
        torch.where(usable, low, unusable),
        torch.where(usable, step, unusable),
    )


def unpack(
    codes: torch.Tensor,
    low: torch.Tensor,
    step: torch.Tensor,
    bits: int,
    group: int,
    elements: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Return what `pack` kept, shape `[elements]`, rounded to the nearest value of `dtype`."""
    levels = read_codes(codes, bits, group).float()
    values = low.float()[:, None] + levels * step.float()[:, None]
    if dtype == torch.float16:
        values = values.clamp(-65504, 65504)
    return values.flatten()[:elements].to(dtype)


def mask(values: torch.Tensor) -> torch.Tensor:
    """Keep one bit an element: whether it is not zero or negative.

    Args:
        values: Floating or bool, shape `[elements]`. The bit of NaN is set.

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
    """Pack codes, uint8 `[groups, group]`, into bytes; byte j of a plane has j, j + bytes, ..."""
    planes = []
    for first, width in PLANES[bits]:
        parts = 8 // width
        each = (codes >> first) & (2**width - 1)
        each = each.view(len(codes), parts, -1)
        plane = each[:, 0].clone()
        for part in range(1, parts):
            plane |= each[:, part] << (part * width)
        planes.append(plane)
    return torch.cat(planes, 1)


def read_codes(stored: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Return the codes that `write_codes` packed, uint8 `[groups, group]`."""
    codes = torch.zeros(len(stored), group, dtype=torch.uint8, device=stored.device)
    at = 0
    for first, width in PLANES[bits]:
        parts = 8 // width
        plane = stored[:, at : at + group // parts]
        at += group // parts
        each = [(plane >> (part * width)) & (2**width - 1) for part in range(parts)]
        codes |= torch.cat(each, 1) << first
    return codes


def random_bits(
    groups: int, group: int, seed: int, stream: int, counter: int, device: torch.device
) -> torch.Tensor:
    """Draw 16 random bits an element, `[groups, group]`, by Philox4x32 with 10 rounds.

    Element e takes counter e % lanes of its group, where there are group / 8 lanes: word
    e / lanes % 4, the lower half in the first half of the group and the upper half in the second.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).
    """
    lanes = group // 8
    counters = torch.arange(groups * lanes, device=device) + counter * lanes
    words = torch.stack(philox(counters, seed, stream), 0).view(4, groups, lanes)
    words = words.transpose(0, 1).reshape(groups, group // 2)
    return torch.cat([words & 0xFFFF, words >> 16], 1).float()


def philox(
    counters: torch.Tensor, seed: int, stream: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return four random words of 32 bits for each counter, as int64."""
    c0, c1 = counters & _WORD, (counters >> 32) & _WORD
    c2, c3 = torch.full_like(c0, stream), torch.zeros_like(c0)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & _WORD) ^ c1 ^ k0, b & _WORD
        c2, c3 = ((a >> 32) & _WORD) ^ c3 ^ k1, a & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def _bf16_below(value: torch.Tensor) -> torch.Tensor:
    bits = value.view(torch.int32)
    cut = (bits & 0xFFFF) != 0
    return (((bits >> 16) + (cut & (bits < 0))).to(torch.int16)).view(torch.bfloat16)


def _bf16_above(not_negative: torch.Tensor) -> torch.Tensor:
    bits = not_negative.view(torch.int32)
    cut = (bits & 0xFFFF) != 0
    return ((bits >> 16) + cut).to(torch.int16).view(torch.bfloat16)
