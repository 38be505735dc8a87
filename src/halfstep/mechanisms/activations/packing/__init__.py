"""Packs tensors into a few bits per element: `torch.ops.halfstep.pack` and `unpack`.

They are operators of torch, so that they also work on fake tensors, which have only shapes.
`reference.py` defines the results; `native.py` on a CPU and `gpu.py` on CUDA give the same bits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from halfstep.mechanisms.activations.packing import native, reference
from halfstep.mechanisms.activations.packing.form import (
    Draw,
    Normaliser,
    Packed,
    unwritten,
    unwritten_mask,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["BITS", "DTYPES", "Draw", "Normaliser", "Packed", "pack"]

BITS = (2, 3, 4, 8)
"""The allowed numbers of bits per element."""

DTYPES = tuple(native.DTYPES)
"""The dtypes that can be packed."""


def pack(
    flat: torch.Tensor,
    bits: int,
    *,
    group: int = 256,
    draw: Draw,
    normaliser: Normaliser | None = None,
) -> Packed:
    """Pack a contiguous tensor, shape `[elements]`, as `reference.pack` does.

    With a normaliser, the normalised tensor is packed, without a pass over memory for it on a GPU.
    """
    stored = torch.ops.halfstep.pack(flat, bits, group, *draw, *(normaliser or (None, None)))
    return Packed(stored, bits, group, flat.numel(), flat.dtype)


def _kernels(device: str) -> Any:
    """Return the module that packs on a device: `reference` if no faster module works there."""
    if device == "CPU":
        return reference if native.library() is None else native
    try:
        from halfstep.mechanisms.activations.packing import gpu
    except ImportError:  # no Triton for this platform
        return reference
    return gpu


def _pack(device: str, flat: torch.Tensor, bits: int, group: int, *numbers: Any) -> Any:
    *draw, scale, shift = numbers
    kernels = _kernels(device)
    if scale is None:
        return kernels.pack(flat, bits, group, Draw(*draw)).stored
    normaliser = Normaliser(scale, shift)
    if device == "CUDA" and kernels is not reference:
        return kernels.pack(flat, bits, group, Draw(*draw), normaliser).stored
    flat = reference.normalised(flat, normaliser)
    return kernels.pack(flat, bits, group, Draw(*draw)).stored


def _unpack(device: str, *packed: Any) -> Any:
    return _kernels(device).unpack(Packed(*packed))


def _mask(device: str, values: torch.Tensor) -> Any:
    return _kernels(device).mask(values)


def _masked(device: str, values: torch.Tensor, bits: torch.Tensor) -> Any:
    return _kernels(device).masked(values, bits)


_ON_FAKE_TENSORS: dict[str, Callable[..., Any]] = {
    "pack": lambda flat, bits, group, *_: unwritten(flat, bits, group).stored,
    "unpack": lambda stored, *form: stored.new_empty(form[-2], dtype=form[-1]),
    "mask": unwritten_mask,
    "masked": lambda values, _: torch.empty_like(values),
}

_operators = torch.library.Library("halfstep", "DEF")
_operators.define(
    "pack(Tensor flat, int bits, int group, int seed, int stream, int counter, "
    "Tensor? forwards, Tensor? scale, Tensor? shift) -> Tensor"
)
_operators.define(
    "unpack(Tensor stored, int bits, int group, int elements, ScalarType dtype) -> Tensor"
)
_operators.define("mask(Tensor values) -> Tensor")
_operators.define("masked(Tensor values, Tensor bits) -> Tensor")

for _name, _run in {"pack": _pack, "unpack": _unpack, "mask": _mask, "masked": _masked}.items():
    for _device in ("CPU", "CUDA"):
        _operators.impl(_name, partial(_run, _device), _device)
    _operators.impl(_name, _ON_FAKE_TENSORS[_name], "Meta")
