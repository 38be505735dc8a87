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

__all__ = ["BITS", "DTYPES", "Draw", "Normaliser", "Packed", "pack", "pack_normalised"]

BITS = (2, 3, 4, 8)
"""The allowed numbers of bits per element."""

DTYPES = tuple(native.DTYPES)
"""The dtypes that can be packed."""


def pack(flat: torch.Tensor, bits: int, *, group: int = 256, draw: Draw) -> Packed:
    """Pack a contiguous tensor, shape `[elements]`, as `reference.pack` does."""
    stored = torch.ops.halfstep.pack(flat, bits, group, *draw)
    return Packed(stored, bits, group, flat.numel(), flat.dtype)


def pack_normalised(
    flat: torch.Tensor, bits: int, *, group: int = 256, draw: Draw, by: Normaliser
) -> tuple[Packed, torch.Tensor]:
    """Normalise and pack a tensor, shape `[elements]`, in one pass over memory on a GPU.

    Returns:
        The packed tensor, and the mask of `by.rectified`, which is empty without one.
    """
    stored, mask = torch.ops.halfstep.pack_normalised(flat, bits, group, *draw, *by)
    return Packed(stored, bits, group, flat.numel(), flat.dtype), mask


def _kernels(device: str) -> Any:
    """Return the module that packs on a device: `reference` if no faster module works there."""
    if device == "CPU":
        return reference if native.library() is None else native
    try:
        from halfstep.mechanisms.activations.packing import gpu
    except ImportError:  # no Triton for this platform
        return reference
    return gpu


def _pack(device: str, flat: torch.Tensor, bits: int, group: int, *draw: Any) -> Any:
    return _kernels(device).pack(flat, bits, group, Draw(*draw)).stored


def _pack_normalised(device: str, flat: torch.Tensor, bits: int, group: int, *given: Any) -> Any:
    draw, by = Draw(*given[:4]), Normaliser(*given[4:])
    kernels = _kernels(device)
    if device == "CUDA" and kernels is not reference:
        packed, mask = kernels.pack_normalised(flat, bits, group, draw, by)
        return packed.stored, mask
    stored = kernels.pack(reference.normalised(flat, by), bits, group, draw).stored
    return stored, _mask_of(by) if by.rectified is None else kernels.mask(by.rectified)


def _mask_of(by: Normaliser) -> torch.Tensor:
    """Return uninitialised memory for the mask of `by.rectified`, empty without one."""
    return unwritten_mask(by.scale[:0] if by.rectified is None else by.rectified)


def _unpack(device: str, *packed: Any) -> Any:
    return _kernels(device).unpack(Packed(*packed))


def _mask(device: str, values: torch.Tensor) -> Any:
    return _kernels(device).mask(values)


def _masked(device: str, values: torch.Tensor, bits: torch.Tensor) -> Any:
    return _kernels(device).masked(values, bits)


_ON_FAKE_TENSORS: dict[str, Callable[..., Any]] = {
    "pack": lambda flat, bits, group, *_: unwritten(flat, bits, group).stored,
    "pack_normalised": lambda flat, bits, group, *given: (
        unwritten(flat, bits, group).stored,
        _mask_of(Normaliser(*given[4:])),
    ),
    "unpack": lambda stored, *form: stored.new_empty(form[-2], dtype=form[-1]),
    "mask": unwritten_mask,
    "masked": lambda values, _: torch.empty_like(values),
}

_operators = torch.library.Library("halfstep", "DEF")
_operators.define(
    "pack(Tensor flat, int bits, int group, int seed, int stream, int counter, "
    "Tensor? forwards) -> Tensor"
)
_operators.define(
    "pack_normalised(Tensor flat, int bits, int group, int seed, int stream, int counter, "
    "Tensor? forwards, Tensor scale, Tensor shift, Tensor? rectified) -> (Tensor, Tensor)"
)
_operators.define(
    "unpack(Tensor stored, int bits, int group, int elements, ScalarType dtype) -> Tensor"
)
_operators.define("mask(Tensor values) -> Tensor")
_operators.define("masked(Tensor values, Tensor bits) -> Tensor")

_RUN: dict[str, Callable[..., Any]] = {
    "pack": _pack, "pack_normalised": _pack_normalised, "unpack": _unpack, "mask": _mask,
    "masked": _masked,
}  # fmt: skip
for _name, _run in _RUN.items():
    for _device in ("CPU", "CUDA"):
        _operators.impl(_name, partial(_run, _device), _device)
    _operators.impl(_name, _ON_FAKE_TENSORS[_name], "Meta")
