"""Batch norm that saves its normalised values instead of its input.

Where a kernel normalises a tensor as it packs it, the layer packs its values itself, and its
backward reads the packed values. A rectifier after it takes part: its bits are taken in the pass
that packs, and its backward sums the gradient for the layer as it masks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.memory_order import in_memory_order, in_order_of
from halfstep.mechanisms.activations import norm_backward
from halfstep.mechanisms.activations.packing import Normaliser, Packed
from halfstep.mechanisms.activations.packing.form import MASK_GROUP
from halfstep.mechanisms.activations.store import refuse_second_derivative

if TYPE_CHECKING:
    from halfstep.mechanisms.activations.store import Store

NORMALISED_AS_PACKED = {"cuda"}
"""The types of devices whose kernels normalise the channels of a tensor as they pack it."""

_TRAINING = True


@dataclass(slots=True)
class PackedChannels:
    """What a layer that has packed its normalised values shares with the rectifier after it.

    Attributes:
        bits: Number of bits of a code.
        group: Number of elements in a group.
        stride: The strides of the values.
        version: The version of the layer's result. After a change in place, it is not the result.
        owner: A parameter that tells the layer from others; None if it has none.
        store: Remembers the layers whose results are rectified.
        mask: The mask of the result, until a rectifier takes it; None if it was not taken.
        summed: The gradient of the result, its version and its sums, if the rectifier's backward
            has computed them.
    """

    bits: int
    group: int
    stride: tuple[int, ...]
    version: int
    owner: torch.Tensor | None
    store: Store
    mask: torch.Tensor | None = None
    summed: tuple[torch.Tensor, int, torch.Tensor] | None = None

    def are_of(self, result: torch.Tensor) -> bool:
        """Tell whether a rectifier can take part that gets the layer's result."""
        same = (result._version, result.stride()) == (self.version, self.stride)
        return same and self.group == MASK_GROUP

    def take_mask(self) -> torch.Tensor | None:
        """Return the mask of the result, which the rectifier saves from now on."""
        mask, self.mask = self.mask, None
        return mask

    def of(self, stored: torch.Tensor, gradient: torch.Tensor) -> Packed:
        """Return the packed values."""
        return Packed(stored, self.bits, self.group, gradient.numel(), gradient.dtype)


class BatchNorm(torch.autograd.Function):
    """`batch_norm` with the statistics of the batch; saves the normalised values."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        momentum: float,
        eps: float,
        store: Store,
    ) -> torch.Tensor:
        """Normalise each channel, which is dimension 1."""
        result, mean, deviation = torch.native_batch_norm(
            values, weight, bias, running_mean, running_var, _TRAINING, momentum, eps
        )
        shape = [1, -1] + [1] * (values.dim() - 2)
        deviation = deviation.view(shape)
        scale = deviation.float()  # in bf16, the difference of two large products would be lost
        shift = mean.view(shape) * scale
        ctx.eps, ctx.channels = eps, None
        if values.device.type in NORMALISED_AS_PACKED and store.packs_channels(values):
            takes = store.is_rectified(weight) and result.stride() == values.stride()
            rectified = in_memory_order(result) if takes else None
            by = Normaliser(scale.flatten(), shift.flatten(), rectified)
            packed, mask = store.pack_normalised(values, by)
            ctx.channels = PackedChannels(
                packed.bits, packed.group, values.stride(), result._version, weight, store,
                mask if takes else None,
            )  # fmt: skip
            normalised = packed.stored
        else:
            normalised = (values * scale).sub_(shift).to(values.dtype)
        ctx.save_for_backward(normalised, deviation.flatten(), weight)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients of values, weight and bias."""
        refuse_second_derivative()
        normalised, deviation, weight = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[3], ctx.needs_input_grad[4]]
        if ctx.channels is not None:
            found = _of_packed(ctx.channels, gradient, normalised, deviation, weight)
        else:
            scale = deviation if weight is None else weight * deviation
            found = torch.ops.aten.native_batch_norm_backward(
                gradient, normalised, scale, None, None, torch.zeros_like(deviation),
                torch.ones_like(deviation), _TRAINING, ctx.eps, needed,
            )  # fmt: skip
        of_values, of_weight, of_bias = (
            one if wanted else None for one, wanted in zip(found, needed, strict=True)
        )
        return of_values, None, None, of_weight, of_bias, None, None, None


def _of_packed(
    channels: PackedChannels,
    gradient: torch.Tensor,
    stored: torch.Tensor,
    deviation: torch.Tensor,
    weight: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of values, weight and bias of packed normalised values."""
    summed, channels.summed = channels.summed, None
    if summed is None or summed[0] is not gradient or summed[1] != gradient._version:
        gradient, partial = _summed(channels, gradient, None, stored, len(deviation))
    else:  # as the rectifier's backward has returned it, and no other operator used the result
        partial = summed[2]
    flat = in_memory_order(gradient)
    of_values, of_weight, of_bias = norm_backward.gradients(
        flat, partial, channels.of(stored, flat), deviation, weight
    )
    return of_values.as_strided(gradient.size(), gradient.stride()), of_weight, of_bias


def _summed(
    channels: PackedChannels,
    gradient: torch.Tensor,
    mask: torch.Tensor | None,
    stored: torch.Tensor,
    count: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a gradient in the order of the values, masked, and its sums for `count` channels."""
    gradient = in_order_of(gradient, channels.stride)
    flat = in_memory_order(gradient)
    masked, partial = norm_backward.sums(flat, mask, channels.of(stored, flat), count)
    return masked.as_strided(gradient.size(), gradient.stride()), partial


def layer_of(values: torch.Tensor) -> Any:
    """Return the node of the layer whose unchanged result is `values`, if it has packed channels.

    From now on, it is known that a rectifier follows this layer.
    """
    node = values.grad_fn
    channels = getattr(node, "channels", None)
    if not isinstance(channels, PackedChannels) or not channels.are_of(values):
        return None
    channels.store.rectifies(channels.owner)
    return node


def rectified(layer: Any, gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mask the gradient of a rectifier's result, and sum it for the layer before.

    Args:
        layer: The result of `layer_of`, whose result the rectifier got.
        gradient: The gradient of the rectifier's result.
        mask: The mask of the rectifier, in the order of the layer's values.

    Returns:
        The gradient of the rectifier's input.
    """
    stored, deviation, _ = layer.saved_tensors
    masked, partial = _summed(layer.channels, gradient, mask, stored, len(deviation))
    layer.channels.summed = masked, masked._version, partial
    return masked
