"""Tensors kept in a few bits an element, and back: `torch.ops.halfstep.pack` and `unpack`.

Operators of torch, so that fake tensors know their shapes. `reference.py` says what they compute;
`native.py` does it on a CPU and `gpu.py` on CUDA, to the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from halfstep.kernels.packing import native, reference

if TYPE_CHECKING:
    from collections.abc import Callable

BITS = (2, 3, 4, 8)
"""Bits an element that values are packed in."""

DTYPES = tuple(native.DTYPES)
"""What can be packed."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor of a few bits an element.

    Attributes:
        codes: uint8 `[groups, group * bits / 8]`.
        low: Lowest value of each group, bf16 `[groups]`.
        step: Distance of a group's levels, bf16 `[groups]`.
        bits: Bits of a code.
        group: Elements of a group.
        elements: Elements in all.
        dtype: What they were.
    """

    codes: torch.Tensor
    low: torch.Tensor
    step: torch.Tensor
    bits: int
    group: int
    elements: int
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.codes.nbytes + self.low.nbytes + self.step.nbytes

    def unpack(self) -> torch.Tensor:
        """Return the values, shape `[elements]`."""
        unpacked: torch.Tensor = torch.ops.halfstep.unpack(
            self.codes, self.low, self.step, self.bits, self.group, self.elements, self.dtype
        )
        return unpacked


def pack(
    flat: torch.Tensor, bits: int, *, group: int = 256, seed: int, stream: int = 0, counter: int = 0
) -> Packed:
    """Keep a contiguous tensor of one dimension in `bits` bits an element; see `reference.pack`."""
    codes, low, step = torch.ops.halfstep.pack(flat, bits, group, seed, stream, counter)
    return Packed(codes, low, step, bits=bits, group=group, elements=flat.numel(), dtype=flat.dtype)


_operators = torch.library.Library("halfstep", "DEF")
_operators.define(
    "pack(Tensor flat, int bits, int group, int seed, int stream, int counter) "
    "-> (Tensor, Tensor, Tensor)"
)
_operators.define(
    "unpack(Tensor codes, Tensor low, Tensor step, int bits, int group, int elements, "
    "ScalarType dtype) -> Tensor"
)
_operators.define("mask(Tensor values) -> Tensor")
_operators.define("masked(Tensor values, Tensor bits) -> Tensor")


@torch.library.impl(_operators, "pack", "CPU")
def _pack_on_cpu(
    flat: torch.Tensor, bits: int, group: int, seed: int, stream: int, counter: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    functions = native.library()
    if functions is None:
        return reference.pack(flat, bits, group, seed, stream, counter)
    return native.pack(functions, flat, bits, group, seed, stream, counter)


@torch.library.impl(_operators, "unpack", "CPU")
def _unpack_on_cpu(
    codes: torch.Tensor,
    low: torch.Tensor,
    step: torch.Tensor,
    bits: int,
    group: int,
    elements: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    functions = native.library()
    if functions is None:
        return reference.unpack(codes, low, step, bits, group, elements, dtype)
    return native.unpack(functions, codes, low, step, bits, group, elements, dtype)


@torch.library.impl(_operators, "mask", "CPU")
def _mask_on_cpu(values: torch.Tensor) -> torch.Tensor:
    functions = native.library()
    return reference.mask(values) if functions is None else native.mask(functions, values)


@torch.library.impl(_operators, "masked", "CPU")
def _masked_on_cpu(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    functions = native.library()
    if functions is None:
        return reference.masked(values, bits)
    return native.masked(functions, values, bits)


def _on_gpu(name: str) -> Callable[..., Any]:
    try:
        from halfstep.kernels.packing import gpu
    except ImportError:  # no Triton for this platform
        found = getattr(reference, name)
    else:
        found = getattr(gpu, name)
    return cast("Callable[..., Any]", found)


for _name in ("pack", "unpack", "mask", "masked"):
    _operators.impl(_name, lambda *args, _name=_name: _on_gpu(_name)(*args), "CUDA")


@torch.library.impl(_operators, "pack", "Meta")
def _shapes_packed(
    flat: torch.Tensor, bits: int, group: int, seed: int, stream: int, counter: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del seed, stream, counter
    groups = -(-flat.numel() // group)
    low = flat.new_empty(groups, dtype=torch.bfloat16)
    return (
        flat.new_empty(groups, group * bits // 8, dtype=torch.uint8),
        low,
        torch.empty_like(low),
    )


@torch.library.impl(_operators, "unpack", "Meta")
def _shape_unpacked(
    codes: torch.Tensor,
    low: torch.Tensor,
    step: torch.Tensor,
    bits: int,
    group: int,
    elements: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    del low, step, bits, group
    return codes.new_empty(elements, dtype=dtype)


@torch.library.impl(_operators, "mask", "Meta")
def _shape_of_mask(values: torch.Tensor) -> torch.Tensor:
    groups = -(-values.numel() // reference.MASK_GROUP)
    return values.new_empty(groups, reference.MASK_GROUP // 8, dtype=torch.uint8)


@torch.library.impl(_operators, "masked", "Meta")
def _shape_masked(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    del bits
    return torch.empty_like(values)
