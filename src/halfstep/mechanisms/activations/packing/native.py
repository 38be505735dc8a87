"""`packing.c`: packing on a CPU, compiled at the first use (`kernels/native/compiled.py`).

Without a compiler, `reference.py` is used, which is many times slower.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from halfstep.kernels.native.compiled import at, in_threads, load
from halfstep.mechanisms.activations.packing.form import Draw, Packed, unwritten, unwritten_mask

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""The dtypes that can be packed, with their numbers in `packing.c`."""

_SOURCE = Path(__file__).with_name("packing.c")
_HEADER = _SOURCE.with_name("formats.h")


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None if they cannot be compiled or loaded."""
    otherwise = "activations are packed by plain PyTorch, which is slow"
    return load(_SOURCE, _HEADER, otherwise=otherwise)


def pack(flat: torch.Tensor, bits: int, group: int, draw: Draw) -> Packed:
    """Compute `reference.pack` for a contiguous tensor on the CPU."""
    packed = unwritten(flat, bits, group)
    numbers = _uint64(draw.seed), ctypes.c_uint32(draw.stream), _uint64(draw.first)
    kernel, results = _kernel("pack"), _parts(packed)

    def part(first: int, count: int) -> None:
        kernel(
            at(flat), DTYPES[flat.dtype], _int64(flat.numel()), _int64(first), _int64(count),
            group, bits, *numbers, *results,
        )  # fmt: skip

    in_threads(part, packed.groups, flat.numel())
    return packed


def unpack(packed: Packed) -> torch.Tensor:
    """Compute `reference.unpack` on the CPU."""
    flat = torch.empty(packed.elements, dtype=packed.dtype)
    kernel, given = _kernel("unpack"), _parts(packed)

    def part(first: int, count: int) -> None:
        kernel(
            *given, DTYPES[packed.dtype], _int64(packed.elements),
            _int64(first), _int64(count), packed.group, packed.bits, at(flat),
        )  # fmt: skip

    in_threads(part, packed.groups, packed.elements)
    return flat


def mask(values: torch.Tensor) -> torch.Tensor:
    """Compute `reference.mask` for a contiguous tensor on the CPU."""
    bits = unwritten_mask(values)
    dtype = _BOOL if values.dtype == torch.bool else DTYPES[values.dtype]
    kernel = _kernel("mask")

    def part(first: int, count: int) -> None:
        kernel(at(values), dtype, _int64(values.numel()), _int64(first), _int64(count), at(bits))

    in_threads(part, len(bits), values.numel())
    return bits


def masked(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Compute `reference.masked` for a contiguous tensor on the CPU."""
    result = torch.empty_like(values)
    kernel = _kernel("masked")

    def part(first: int, count: int) -> None:
        kernel(
            at(values), values.element_size(), at(bits), _int64(values.numel()), _int64(first),
            _int64(count), at(result),
        )  # fmt: skip

    in_threads(part, len(bits), values.numel())
    return result


def _parts(packed: Packed) -> tuple[ctypes.c_void_p, ...]:
    """Return the addresses of the codes, the lowest levels and the steps."""
    return at(packed.codes), at(packed.low), at(packed.step)


def _kernel(name: str) -> Callable[..., Any]:
    functions = library()
    assert functions is not None, "callers ask for the library before"
    return cast("Callable[..., Any]", getattr(functions, name))


_BOOL = 3
_int64, _uint64 = ctypes.c_int64, ctypes.c_uint64
