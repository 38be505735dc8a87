"""The definition of the kernels, in plain PyTorch on any device, with the order of all sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.mechanisms.activations.norm_backward.form import ROWS, tiles_of
from halfstep.mechanisms.activations.packing import reference

if TYPE_CHECKING:
    from halfstep.mechanisms.activations.packing.form import Packed


def sums(
    gradient: torch.Tensor, mask: torch.Tensor | None, packed: Packed, channels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mask the gradient of a layer's result, and sum it, and its product with the values.

    Args:
        gradient: Shape `[elements]`, channels adjacent.
        mask: The result of `packing.reference.mask`; None for no mask.
        packed: The normalised values, in the dtype of the gradient.
        channels: Number of channels.

    Returns:
        The masked gradient, `[elements]`, empty without a mask; and the sums of each part and lane
        of a channel, fp32 `[2, parts, lanes * channels]`.
    """
    masked = gradient[:0] if mask is None else reference.masked(gradient, mask)
    change = (gradient if mask is None else masked).float()
    tiles = tiles_of(gradient.numel(), channels, packed.group)
    both = torch.stack([change, change * reference.unpack(packed).float()])
    size = tiles.parts, tiles.rounds, tiles.at_once, tiles.stride, packed.group
    padded = both.new_zeros(2, torch.Size(size).numel())
    padded[:, : change.numel()] = both
    in_order = padded.view(2, *size)
    total = torch.zeros_like(in_order[:, :, 0])
    for number in range(tiles.rounds):
        total = total + in_order[:, :, number]
    return masked, _halved(total, 2, tiles.rows).reshape(2, tiles.parts, -1)


def totals(
    partial: torch.Tensor, share: float, deviation: torch.Tensor, weight: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add up the result of `sums`.

    Args:
        partial: Sums, fp32 `[2, parts, lanes * channels]`.
        share: The reciprocal of the number of elements of a channel.
        deviation: The reciprocal standard deviations, `[channels]`.
        weight: The weight of the layer, `[channels]`; None for ones.

    Returns:
        The gradients of the weight and of the bias, fp32 `[channels]`, and the factors of `values`.
    """
    channels = len(deviation)
    parts = -(-partial.size(1) // ROWS) * ROWS
    padded = torch.nn.functional.pad(partial, (0, 0, 0, parts - partial.size(1)))
    in_order = padded.view(2, parts // ROWS, ROWS, -1, channels)
    total = padded.new_zeros(2, ROWS, channels)
    for lane in range(in_order.size(3)):
        for block in range(in_order.size(1)):
            total = total + in_order[:, block, :, lane]
    of_bias, of_weight = _halved(total, 1, 1)[:, 0]
    scale = deviation.float() if weight is None else deviation.float() * weight.float()
    return of_weight, of_bias, torch.stack([of_bias * share, of_weight * share, scale])


def values(gradient: torch.Tensor, packed: Packed, factors: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a layer's input, `[elements]`, in the dtype of `gradient`.

    Args:
        gradient: The masked gradient of its result, `[elements]`.
        packed: The normalised values.
        factors: For each channel, fp32 `[3, channels]`: the means of the gradient and of its
            product with the values, and the weight over the standard deviation.
    """
    mean, along, scale = factors
    rows = gradient.float().view(-1, len(scale))
    normalised = reference.unpack(packed).float().view(rows.shape)
    result: torch.Tensor = ((rows - mean) - normalised * along) * scale
    return result.to(gradient.dtype).flatten()


def _halved(total: torch.Tensor, axis: int, rows: int) -> torch.Tensor:
    """Add the second half of the rows to the first, until `rows` of them are left."""
    while total.size(axis) > rows:
        one, other = total.chunk(2, axis)
        total = one + other
    return total
