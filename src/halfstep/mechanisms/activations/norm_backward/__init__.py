"""The backward of a batch norm layer, which reads the packed normalised values themselves.

Values that are unpacked are written once and read twice by torch's kernels. These kernels never
write them, and take the mask of a rectifier after the layer in the pass that sums the gradient.
`reference.py` defines the results, also on a CPU; `gpu.py` gives the same bits on CUDA.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from halfstep.mechanisms.activations.norm_backward import reference
from halfstep.mechanisms.activations.norm_backward.form import tiles_of
from halfstep.mechanisms.activations.packing.form import Packed

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["gradients", "sums", "tiles_of"]


def sums(
    gradient: torch.Tensor, mask: torch.Tensor | None, packed: Packed, channels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mask and sum a gradient, as `reference.sums` does; the gradient without a mask is itself."""
    masked, partial = torch.ops.halfstep.norm_sums(
        gradient, mask, packed.stored, packed.bits, packed.group, channels
    )
    return gradient if mask is None else masked, partial


def gradients(
    gradient: torch.Tensor,
    partial: torch.Tensor,
    packed: Packed,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of a layer's input, weight and bias; see `reference`.

    Args:
        gradient: The masked gradient of the layer's result, `[elements]`.
        partial: Its sums, from `sums`.
        packed: The normalised values.
        deviation: The reciprocal standard deviations, `[channels]`.
        weight: The weight of the layer; None for ones.
    """
    found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = torch.ops.halfstep.norm_gradients(
        gradient, partial, packed.stored, packed.bits, packed.group, deviation, weight
    )
    return found


def _kernels(device: str) -> Any:
    """Return the module that computes on a device."""
    if device == "CUDA":
        try:
            from halfstep.mechanisms.activations.norm_backward import gpu
        except ImportError:  # no Triton for this platform
            return reference
        return gpu
    return reference


def _sums(device: str, gradient: Any, mask: Any, *given: Any) -> Any:
    stored, bits, group, channels = given
    packed = Packed(stored, bits, group, gradient.numel(), gradient.dtype)
    return _kernels(device).sums(gradient, mask, packed, channels)


def _gradients(device: str, gradient: Any, partial: Any, *given: Any) -> Any:
    stored, bits, group, deviation, weight = given
    packed = Packed(stored, bits, group, gradient.numel(), gradient.dtype)
    kernels, share = _kernels(device), len(deviation) / gradient.numel()
    of_weight, of_bias, factors = kernels.totals(partial, share, deviation, weight)
    return kernels.values(gradient, packed, factors), of_weight, of_bias


def _fake_sums(gradient: Any, mask: Any, _: Any, __: int, group: int, channels: int) -> Any:
    tiles = tiles_of(gradient.numel(), channels, group)
    masked = gradient[:0].clone() if mask is None else torch.empty_like(gradient)
    size = 2, tiles.parts, tiles.lanes * channels
    return masked, gradient.new_empty(size, dtype=torch.float32)


def _fake_gradients(gradient: Any, *given: Any) -> Any:
    of_channels = torch.empty_like(given[-2], dtype=torch.float32)
    return torch.empty_like(gradient), of_channels, torch.empty_like(of_channels)


_operators = torch.library.Library("halfstep", "FRAGMENT")
_operators.define(
    "norm_sums(Tensor gradient, Tensor? mask, Tensor stored, int bits, int group, int channels) "
    "-> (Tensor, Tensor)"
)
_operators.define(
    "norm_gradients(Tensor gradient, Tensor partial, Tensor stored, int bits, int group, "
    "Tensor deviation, Tensor? weight) -> (Tensor, Tensor, Tensor)"
)

_RUN: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "norm_sums": (_sums, _fake_sums), "norm_gradients": (_gradients, _fake_gradients),
}  # fmt: skip
for _name, (_run, _fake) in _RUN.items():
    for _device in ("CPU", "CUDA"):
        _operators.impl(_name, partial(_run, _device), _device)
    _operators.impl(_name, _fake, "Meta")
