"""A step on CUDA, in Triton: one pass over memory, for all parameters in at most two launches.

A table on the device has the addresses of each parameter's tensors, and a list has the parameter of
each program. Both are kept for as long as the addresses stay the same, and a captured step refers
to them. Parameters whose tensors are not aligned to 16 bytes have a launch of their own.

The kernel gives the bits of `reference.py`, so it must not fuse multiplications with additions.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
import triton  # type: ignore[import-untyped]  # it has no types
from triton import language as tl

from halfstep.kernels.triton_math import most, signed, to_bf16
from halfstep.kernels.update.form import COUNTERS, GROUP, SPLIT, Device, Rule, Tensors

BLOCK = 1024
"""Elements of a program: 8 of each of its 128 threads, which are 16 bytes of bf16."""

_COLUMNS = 10
"""Numbers of a row of the table: seven addresses, elements, first program, and parameter."""

_SEED = ("seed_low", "seed_high")
SIGNED, UNSIGNED = tl.constexpr(value=True), tl.constexpr(value=False)


@triton.jit(do_not_specialize=_SEED)  # type: ignore[untyped-decorator]
def _update_kernel(  # noqa: C901, PLR0912, PLR0913, PLR0915, PLR0917  # a kernel takes no structures
    table: tl.tensor,
    owners: tl.tensor,
    numbers: tl.tensor,
    places: tl.tensor,
    draws: tl.tensor,
    found_inf: tl.tensor,
    lost: tl.tensor,
    seed_low: tl.tensor,
    seed_high: tl.tensor,
    decay1: tl.tensor,
    gain1: tl.tensor,
    decay2: tl.tensor,
    gain2: tl.tensor,
    eps: tl.tensor,
    penalty: tl.tensor,
    adam: tl.constexpr,
    has_first: tl.constexpr,
    nesterov: tl.constexpr,
    maximize: tl.constexpr,
    penalised: tl.constexpr,
    weight_in: tl.constexpr,
    gradient_in: tl.constexpr,
    first_in: tl.constexpr,
    second_in: tl.constexpr,
    correction_in: tl.constexpr,
    missing: tl.constexpr,
    checked: tl.constexpr,
    aligned: tl.constexpr,
    rows: tl.constexpr,
    group: tl.constexpr,
    columns: tl.constexpr,
    counters: tl.constexpr,
) -> None:
    if checked and tl.load(found_inf) != 0.0:
        return
    program = tl.program_id(0)
    entry = table + tl.load(owners + program).to(tl.int64) * columns
    elements = tl.load(entry + 7)
    if aligned:
        elements = tl.multiple_of(elements, 8)
    begin = (program - tl.load(entry + 8)) * (rows * group)
    parameter = tl.load(entry + 9)
    at = begin + tl.arange(0, rows)[:, None] * group + tl.arange(0, group)[None, :]
    inside = at < elements

    weights_at = _places(entry, weight_in, at, aligned)
    weight = tl.load(weights_at, mask=inside, other=0.0)
    value = weight.to(tl.float32)
    change = tl.load(_places(entry + 1, gradient_in, at, aligned), mask=inside, other=0.0)
    change = change.to(tl.float32)
    corrections_at = at
    if missing > 0:
        corrections_at = _places(entry + 2, correction_in, at, aligned)
        lower = tl.load(corrections_at, mask=inside, other=0).to(tl.int32) << (16 - missing)
        upper = weight.to(tl.int16, bitcast=True).to(tl.int32) << 16
        value = (upper + lower).to(tl.float32, bitcast=True)
    elif correction_in is not None:
        corrections_at = _places(entry + 2, correction_in, at, aligned)
        value += tl.load(corrections_at, mask=inside, other=0.0).to(tl.float32)
    before = value
    if maximize:
        change = -change
    if penalised:
        change = change + value * penalty

    seed = (seed_high.to(tl.uint64) << 32) | (seed_low.to(tl.uint64) & 0xFFFFFFFF)
    draw = tl.load(draws)
    unit = begin // 8 + tl.arange(0, rows)[:, None] * (group // 8)
    unit += tl.arange(0, group // 8)[None, :]
    sequence = tl.load(places + parameter) * 4
    numbers += parameter * 3
    rate = tl.load(numbers)
    if has_first:
        first = _read(
            entry + 3, entry + 5, first_in, at, begin, elements, aligned, SIGNED, rows, group
        )
    if adam:
        second = _read(
            entry + 4, entry + 6, second_in, at, begin, elements, aligned, UNSIGNED, rows, group
        )
        first = first + (change - first) * gain1
        second = second * decay2 + change * change * gain2
        root = tl.load(numbers + 1)
        width = tl.sqrt_rn(second) * root + eps
        value = value * tl.load(numbers + 2) - tl.div_rn(rate * first, width)
        bits = _random(seed, draw, unit, sequence + 2)
        _write(
            entry + 4, entry + 6, second_in, second, bits, at, begin, inside, elements,
            aligned, UNSIGNED, rows, group,
        )  # fmt: skip
    else:
        if has_first:
            first = first * decay1 + change * gain1
            change = change + first * decay1 if nesterov else first
        value = value - rate * change
    if has_first:
        bits = _random(seed, draw, unit, sequence + 1)
        _write(
            entry + 3, entry + 5, first_in, first, bits, at, begin, inside, elements,
            aligned, SIGNED, rows, group,
        )  # fmt: skip
    if missing > 0:
        whole = tl.where(value == value, value, float("nan"))  # noqa: PLR0124  # any NaN
        word = whole.to(tl.int32, bitcast=True)
        if missing == 8:
            word = (word + 0x80) >> 8
        upper = (word + (1 << (missing - 1))) >> missing
        tl.store(weights_at, upper.to(tl.int16).to(tl.bfloat16, bitcast=True), mask=inside)
        tl.store(corrections_at, (word - (upper << missing)).to(correction_in), mask=inside)
        after = (word << (16 - missing)).to(tl.float32, bitcast=True)
    elif correction_in is not None:
        rounded = to_bf16(value)
        tl.store(weights_at, rounded, mask=inside)
        left = to_bf16(value - rounded.to(tl.float32))
        tl.store(corrections_at, left, mask=inside)
        after = rounded.to(tl.float32) + left.to(tl.float32)
    elif weight_in == tl.float32:
        after = value
        tl.store(weights_at, value, mask=inside)
    else:
        rounded = _rounded_by(value, _random(seed, draw, unit, sequence))
        tl.store(weights_at, rounded, mask=inside)
        after = rounded.to(tl.float32)
    if counters > 0:
        nothing = inside & (value != before) & (after == before)
        number = tl.sum(tl.sum(nothing.to(tl.int32), 1), 0)
        tl.atomic_add(lost + program % counters, number.to(tl.int64), sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _places(
    address: tl.tensor, kind: tl.constexpr, at: tl.tensor, aligned: tl.constexpr
) -> tl.tensor:
    """Return the addresses of elements; the address of the first is in the table."""
    base = tl.load(address).to(tl.pointer_type(kind))
    if aligned:
        base = tl.multiple_of(base, 16)
    return base + at


@triton.jit  # type: ignore[untyped-decorator]
def _read(
    address: tl.tensor,
    scales: tl.tensor,
    kind: tl.constexpr,
    at: tl.tensor,
    begin: tl.tensor,
    elements: tl.tensor,
    aligned: tl.constexpr,
    is_signed: tl.constexpr,
    rows: tl.constexpr,
    group: tl.constexpr,
) -> tl.tensor:
    """Return a moment in fp32."""
    stored = tl.load(_places(address, kind, at, aligned), mask=at < elements, other=0)
    if kind == tl.bfloat16 or kind == tl.float32:  # noqa: PLR1714  # Triton has no `in`
        moment = stored.to(tl.float32)
    else:
        row = begin // group + tl.arange(0, rows)
        kept = tl.load(scales).to(tl.pointer_type(tl.float32)) + row
        scale = tl.load(kept, mask=row * group < elements, other=0.0)
        code = stored.to(tl.int32)
        level = _level(tl.abs(code), is_signed)
        moment = tl.where(code < 0, -level, level) * scale[:, None]
    return moment


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # noqa: PLR0913, PLR0917
    address: tl.tensor,
    scales: tl.tensor,
    kind: tl.constexpr,
    moment: tl.tensor,
    bits: tl.tensor,
    at: tl.tensor,
    begin: tl.tensor,
    inside: tl.tensor,
    elements: tl.tensor,
    aligned: tl.constexpr,
    is_signed: tl.constexpr,
    rows: tl.constexpr,
    group: tl.constexpr,
) -> None:
    """Store a moment; in a narrow format, rounded stochastically by 16 random bits."""
    to = _places(address, kind, at, aligned)
    if kind == tl.float32:
        tl.store(to, moment, mask=inside)
    elif kind == tl.bfloat16:
        tl.store(to, _rounded_by(moment, bits), mask=inside)
    else:
        size = tl.abs(moment)
        scale = tl.reduce(tl.where(inside, size, 0.0), 1, most)
        inverse = tl.where(scale >= 2.0**-126, tl.div_rn(1.0, scale), 0.0)
        share = size * inverse[:, None]
        share = tl.where(share < 1.0, share, 1.0)
        top: tl.constexpr = 127 if is_signed else 255
        place = tl.sqrt_rn(share)
        if not is_signed:
            place = tl.sqrt_rn(place)
        code = tl.minimum((place * top).to(tl.int32), top - 1)
        below = _level(code, is_signed)
        above = _level(code + 1, is_signed)
        goes_up = (bits.to(tl.float32) + 0.5) * (2.0**-16) * (above - below) < share - below
        code += goes_up.to(tl.int32)
        if is_signed:
            code = tl.where(moment < 0.0, -code, code)
        else:
            code = tl.where((moment > 0.0) & (code < 1), 1, code)
        tl.store(to, code.to(kind), mask=inside)
        row = begin // group + tl.arange(0, rows)
        kept = tl.load(scales).to(tl.pointer_type(tl.float32)) + row
        tl.store(kept, scale, mask=row * group < elements)


@triton.jit  # type: ignore[untyped-decorator]
def _level(code: tl.tensor, is_signed: tl.constexpr) -> tl.tensor:
    top: tl.constexpr = 127 if is_signed else 255
    share = code.to(tl.float32) * (1.0 / top)
    level = share * share
    if not is_signed:
        level = level * (share * share)
    return level


@triton.jit  # type: ignore[untyped-decorator]
def _random(seed: tl.tensor, draw: tl.tensor, unit: tl.tensor, sequence: tl.tensor) -> tl.tensor:
    """Draw 16 bits for each element: 8 of each unit, in the order of the elements."""
    zero = tl.zeros(unit.shape, tl.uint32)
    words = tl.philox(
        seed,
        zero + (draw & 0xFFFFFFFF).to(tl.uint32),
        zero + ((draw >> 32) & 0xFFFFFFFF).to(tl.uint32),
        (unit & 0xFFFFFFFF).to(tl.uint32),
        zero + sequence.to(tl.uint32),
    )
    even, odd = tl.interleave(words[0], words[2]), tl.interleave(words[1], words[3])
    word = tl.interleave(even, odd)
    return tl.interleave(word & 0xFFFF, word >> 16).to(tl.int32)


@triton.jit  # type: ignore[untyped-decorator]
def _rounded_by(value: tl.tensor, bits: tl.tensor) -> tl.tensor:
    word = value.to(tl.int32, bitcast=True)
    finite = (word & 0x7F800000) != 0x7F800000
    drawn = tl.where(finite, word + bits, word) >> 16
    drawn = tl.where(value == value, drawn, 0x7FC0)  # noqa: PLR0124  # any NaN
    return drawn.to(tl.int16).to(tl.bfloat16, bitcast=True)


_KINDS = {
    torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16,
    torch.int8: tl.int8, torch.uint8: tl.uint8, torch.int16: tl.int16,
}  # fmt: skip

_recent: OrderedDict[tuple[int, ...], tuple[_Launch, ...]] = OrderedDict()
_captured: list[tuple[_Launch, ...]] = []
_MOST_RECENT = 16


def update(tensors: Tensors, rule: Rule, device: Device) -> None:
    """Compute `reference.update` on the GPU."""
    first, *others = rule.settings
    adam = rule.kind == "adam"
    decay2, eps = others[:2] if adam else (0.0, 0.0)
    gain1 = 1 - (first if adam else others[0])  # of SGD: 1 - dampening
    kinds = [_KINDS[part[0].dtype] if part else None for part in tensors]
    missing = SPLIT.get(tensors.corrections[0].dtype, 0) if tensors.corrections else 0
    with torch.cuda.device_of(device.draws):  # Triton launches on the current GPU
        for launch in _launches(tensors):
            _update_kernel[(launch.programs,)](
                launch.table, launch.owners, device.numbers, device.places, device.draws,
                device.numbers if device.found_inf is None else device.found_inf,
                device.places if device.lost is None else device.lost,
                signed(device.seed), signed(device.seed >> 32),
                first, gain1, decay2, 1 - decay2, eps, others[-1],
                adam=adam, has_first=bool(tensors.first), nesterov=rule.nesterov,
                maximize=rule.maximize, penalised=others[-1] != 0,
                weight_in=kinds[0], gradient_in=kinds[1], first_in=kinds[3], second_in=kinds[4],
                correction_in=kinds[2], missing=missing,
                checked=device.found_inf is not None, aligned=launch.aligned,
                rows=BLOCK // GROUP, group=GROUP, columns=_COLUMNS,
                counters=0 if device.lost is None or kinds[0] == tl.float32 else COUNTERS,
                enable_fp_fusion=False,
            )  # fmt: skip
    for part in (tensors.weights, tensors.corrections, *tensors[3:]):
        torch.autograd.graph.increment_version(part)


class _Launch:
    """What a launch reads: the table of its parameters, and the parameter of each program."""

    def __init__(self, rows: list[list[int]], device: torch.device, *, aligned: bool) -> None:
        owners: list[int] = []
        for index, row in enumerate(rows):
            row[8] = len(owners)
            owners += [index] * -(-row[7] // BLOCK)
        self.aligned = aligned
        self.programs = len(owners)
        self.table = self._moved(torch.tensor(rows, dtype=torch.int64), device)
        self.owners = self._moved(torch.tensor(owners, dtype=torch.int32), device)

    def _moved(self, listed: torch.Tensor, device: torch.device) -> torch.Tensor:
        if device.type == "cpu":
            return listed
        # A captured step copies it again in each replay, so the pinned memory must remain.
        pinned = listed.pin_memory()
        vars(self).setdefault("pinned", []).append(pinned)
        return pinned.to(device, non_blocking=True)


def _launches(tensors: Tensors) -> tuple[_Launch, ...]:
    parts: list[Any] = [[each.data_ptr() for each in part] if part else None for part in tensors]
    sizes = [each.numel() for each in tensors.weights]
    key = (*sizes, *(address or 0 for part in parts for address in part or (0,)))
    known = _recent.get(key)
    if known is not None:
        _recent.move_to_end(key)
        return known
    rows: dict[bool, list[list[int]]] = {True: [], False: []}
    for index, elements in enumerate(sizes):
        addresses = [0 if part is None else part[index] for part in parts]
        aligned = elements % 8 == 0 and not any(address % 16 for address in addresses)
        if elements:
            rows[aligned].append([*addresses, elements, 0, index])
    device = tensors.weights[0].device
    made = tuple(_Launch(some, device, aligned=fits) for fits, some in rows.items() if some)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        _captured.append(made)
        return made
    _recent[key] = made
    if len(_recent) > _MOST_RECENT:
        _recent.popitem(last=False)
    return made
