"""Functions that save less for the backward pass than torch's versions.

A rectifier saves one bit per element, max pooling the position in each window, and dropout its
mask. A smooth elementwise function saves its derivative. The gradient is linear in the derivative,
so with stochastic rounding of the derivative it is right on average; with a rounded input it would
not be. In-place calls save the same.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.memory_order import in_memory_order, in_order_of
from halfstep.mechanisms.activations.batch_norm import layer_of, rectified
from halfstep.mechanisms.activations.store import refuse_second_derivative, uncompressed

if TYPE_CHECKING:
    from collections.abc import Callable


class Rectifier(torch.autograd.Function):
    """`relu`, and clamps with an upper bound such as `relu6`; saves one bit per element."""

    @staticmethod
    def forward(
        ctx: Any, values: torch.Tensor, inplace: bool, lowest: float, highest: float
    ) -> torch.Tensor:
        """Return `values` clamped to two bounds, written into `values` itself if `inplace`."""
        if inplace:
            ctx.mark_dirty(values)
        ctx.layer = None
        if (lowest, highest) == (0.0, inf):
            ctx.layer = layer_of(values)
            taken = None if ctx.layer is None else ctx.layer.channels.take_mask()
            result = values.relu_() if inplace else values.relu()
            if taken is not None:
                ctx.save_for_backward(taken)
                ctx.stride = result.stride()
                return result
            passed = in_memory_order(result)
        else:
            cut = torch.clamp_ if inplace else torch.clamp
            result = cut(values, lowest, highest)
            flat = in_memory_order(result)
            passed = ~((flat <= lowest) | (flat >= highest))
        _keep_mask(ctx, passed, result.stride())
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Return the gradient, with zeros at the elements that were clamped."""
        if ctx.layer is None:
            return _masked(ctx, gradient), None, None, None
        refuse_second_derivative()
        return rectified(ctx.layer, gradient, *ctx.saved_tensors), None, None, None


class Dropout(torch.autograd.Function):
    """`dropout`; saves one bit per element."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, share: float, inplace: bool) -> torch.Tensor:
        """Set a random `share` of `values` to 0, and divide the other values by 1 - `share`."""
        result, mask = torch.native_dropout(values, share, train=True)
        ctx.scale = 1 / (1 - share)
        _keep_mask(ctx, in_memory_order(mask), mask.stride())
        return _put(ctx, result, values) if inplace else result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient divided by 1 - `share`, with zeros at the dropped elements."""
        return _masked(ctx, gradient).mul_(ctx.scale), None, None


class Pointwise(torch.autograd.Function):
    """A smooth elementwise function; saves its derivative."""

    @staticmethod
    def forward(
        ctx: Any,
        values: torch.Tensor,
        call: Callable[[torch.Tensor], torch.Tensor],
        inplace: bool,
    ) -> torch.Tensor:
        """Return `call(values)`, written into `values` itself if `inplace`."""
        with torch.enable_grad(), uncompressed():
            given = values.detach().requires_grad_()
            result = call(given)
            (slope,) = torch.autograd.grad(result, given, torch.ones_like(result))
        ctx.save_for_backward(slope)
        return _put(ctx, result.detach(), values) if inplace else result.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Return the gradient times the saved derivative."""
        refuse_second_derivative()
        (slope,) = ctx.saved_tensors
        return gradient * slope, None, None


class MaxPool(torch.autograd.Function):
    """`max_pool2d`; saves the position of the largest element in each window, in 4 or 8 bits."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, *window: Any) -> torch.Tensor:
        """Return the largest element of each window.

        Args:
            ctx: The context of autograd.
            values: The input, `[batch, channels, height, width]`.
            window: Window size, stride, padding and dilation, each as a pair, and `ceil_mode`.
        """
        pooled: torch.Tensor
        pooled, index = torch.ops.aten.max_pool2d_with_indices(values, *window)
        corner, step_down = _corners(values.size(3), pooled, *window[1:4])
        offset = index - corner
        down = torch.div(offset, step_down, rounding_mode="floor")
        place = down * window[0][1] + (offset - down * step_down) // window[3][1]
        ctx.window = window
        ctx.like = values.size(), values.dtype, values.is_contiguous()
        ctx.save_for_backward(_nibbles(place) if _fits_nibble(window[0]) else place.byte())
        ctx.pooled = pooled.size()
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of the input: each window's gradient goes to its largest element."""
        refuse_second_derivative()
        (kept,) = ctx.saved_tensors
        (height_width, *_), (size, dtype, contiguous) = (ctx.window[:1], ctx.like)
        place = _from_nibbles(kept, ctx.pooled) if _fits_nibble(height_width) else kept.long()
        corner, step_down = _corners(size[3], gradient, *ctx.window[1:4])
        down = place // height_width[1]
        across = (place - down * height_width[1]) * ctx.window[3][1]
        index = corner + down * step_down + across
        form = torch.contiguous_format if contiguous else torch.channels_last
        # The kernel reads only the shape, dtype and memory format of this tensor.
        pooled_from = torch.empty(size, dtype=dtype, device=gradient.device, memory_format=form)
        result = torch.ops.aten.max_pool2d_with_indices_backward(
            gradient.contiguous(memory_format=form), pooled_from, *ctx.window,
            index.contiguous(memory_format=form),
        )  # fmt: skip
        return result, None, None, None, None, None


def _put(ctx: Any, result: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    ctx.mark_dirty(values)
    return values.copy_(result)


def _corners(
    width: int, pooled: torch.Tensor, stride: list[int], padding: list[int], dilation: list[int]
) -> tuple[torch.Tensor, int]:
    """Return the index of each window's first element in its plane, and the index step per row.

    The step leads to the next row of the window, which is `dilation[0]` rows below in the plane.
    """
    rows = torch.arange(pooled.size(2), device=pooled.device) * stride[0] - padding[0]
    columns = torch.arange(pooled.size(3), device=pooled.device) * stride[1] - padding[1]
    return rows[:, None] * width + columns, dilation[0] * width


def _fits_nibble(window: list[int]) -> bool:
    return window[0] * window[1] <= 16


def _nibbles(place: torch.Tensor) -> torch.Tensor:
    flat = place.flatten().byte()
    if flat.numel() % 2:
        flat = torch.cat([flat, flat.new_zeros(1)])
    return flat[::2] | flat[1::2] << 4


def _from_nibbles(kept: torch.Tensor, size: torch.Size) -> torch.Tensor:
    both = torch.stack([kept & 15, kept >> 4], 1).flatten()
    return both[: size.numel()].view(size).long()


def _keep_mask(ctx: Any, flat: torch.Tensor, stride: tuple[int, ...]) -> None:
    ctx.save_for_backward(torch.ops.halfstep.mask(flat))
    ctx.stride = stride


def _masked(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    refuse_second_derivative()
    (bits,) = ctx.saved_tensors
    gradient = in_order_of(gradient, ctx.stride)
    kept: torch.Tensor = torch.ops.halfstep.masked(in_memory_order(gradient), bits)
    return kept.as_strided(gradient.size(), gradient.stride())
