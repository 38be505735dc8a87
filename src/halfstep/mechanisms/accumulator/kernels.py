"""fp16 products that accumulate in fp16, as on hardware without fp32 accumulators.

The products of one instruction are summed exactly and added to an accumulator, which is then
rounded to fp16. So a long sum loses its small terms, and a partial sum beyond 65504 overflows.
"""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format
from torch.nn.functional import pad

from halfstep.kernels.products import ON
from halfstep.kernels.widen import Widened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from halfstep.kernels.products import Operator

DEPTH = 16
"""Number of products that one instruction sums: k in `mma.m16n8k16.f16` (PTX ISA 8, 9.7.14)."""

PLAIN = torch.contiguous_format


@contextmanager
def fp16_accumulation(device_type: str) -> Iterator[None]:
    """Compute fp16 products on "cpu" or "cuda" with fp16 accumulators, in every thread.

    Fused attention keeps fp32 accumulators, as its kernels do on every device.
    """
    with ON[device_type].computed({torch.float16: Fp16Accumulated()}):
        yield


class Fp16Accumulated(Widened):
    """An `Arithmetic` for fp16: products that accumulate in fp16."""

    format = None
    only_widens = False

    def product(
        self,
        operator: Operator,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Compute one operator; operators that do not use tensor cores accumulate in fp32."""
        if operator.name == "convolution":
            return _convolution(*args, **kwargs)
        if operator.name == "convolution_backward":
            return _convolution_backward(*args, **kwargs)
        if operator.name in ("dot", "vdot", "addmv"):
            return super().product(operator, original, args, kwargs)
        left, right = (args[place] for place in operator.factors)
        if operator.name == "addbmm":  # it also sums over the batch
            left, right = left.movedim(0, 1).flatten(1), right.flatten(0, 1)
        result = accumulated(left, right)
        if operator.name in ("mm", "bmm"):
            return result
        alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
        scaled = alpha * result.float()
        return (scaled + beta * args[0].float() if beta else scaled).half()


def accumulated(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Multiply matrices with an fp16 accumulator.

    Args:
        left: fp16, (..., m, k).
        right: fp16, (..., k, n).

    Returns:
        fp16, (..., m, n).
    """
    shape = (*torch.broadcast_shapes(left.shape[:-2], right.shape[:-2]), left.shape[-2])
    total = left.new_zeros((*shape, right.shape[-1]), dtype=torch.float32)
    for start in range(0, left.shape[-1], DEPTH):
        # Not `@`, because Apex's O1 casts it to fp16 in the whole process.
        products = torch.ops.aten.matmul(
            left[..., start : start + DEPTH].float(), right[..., start : start + DEPTH, :].float()
        )
        total = (total + products).half().float()
    return total.half()


def _convolution(
    images: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # ATen's signature
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    stride, padding, dilation = (_each(v, images) for v in (stride, padding, dilation))
    if transposed:
        result = _transposed(
            images, weight, stride, padding, dilation, _each(output_padding, images), groups
        )
    else:
        result = _correlation(images, weight, stride, padding, dilation, groups)
    result = result.contiguous(memory_format=_layout(images, weight))
    if bias is None:
        return result
    return (result.float() + bias.float().view(-1, *[1] * (images.dim() - 2))).half()


def _convolution_backward(
    gradient: torch.Tensor,
    images: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # ATen's signature
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    del bias_sizes, output_padding
    stride, padding, dilation = (_each(v, images) for v in (stride, padding, dilation))
    by_images = by_weight = by_bias = None
    if output_mask[0] and transposed:
        by_images = _correlation(gradient, weight, stride, padding, dilation, groups)
    elif output_mask[0]:
        # If the stride does not divide the padded size, the gradient needs these elements at the
        # far edge, which a transposed convolution would leave out.
        left_over = [
            size - ((out - 1) * step - 2 * edge + gap * (kernel - 1) + 1)
            for size, out, step, edge, gap, kernel in zip(
                images.shape[2:],
                gradient.shape[2:],
                stride,
                padding,
                dilation,
                weight.shape[2:],
                strict=True,
            )
        ]
        by_images = _transposed(gradient, weight, stride, padding, dilation, left_over, groups)
    if output_mask[1]:
        source, target = (gradient, images) if transposed else (images, gradient)
        patches = _patches(source, weight.shape[2:], stride, padding, dilation, groups)
        rows = _grouped(target, groups)
        by_weight = accumulated(rows, patches.mT).reshape(weight.shape)
    layout = _layout(images, weight)
    if by_images is not None:
        by_images = by_images.contiguous(memory_format=layout)
    if by_weight is not None:
        by_weight = by_weight.contiguous(memory_format=layout)
    if output_mask[2]:
        by_bias = gradient.float().sum([0, *range(2, gradient.dim())]).half()
    return by_images, by_weight, by_bias


def _correlation(
    images: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Correlate `images` (N, C, *size) with `weight` (O, C/groups, *kernel)."""
    patches = _patches(images, weight.shape[2:], stride, padding, dilation, groups)
    result = accumulated(weight.reshape(groups, weight.shape[0] // groups, -1), patches)
    size = _output_size(images.shape[2:], weight.shape[2:], stride, padding, dilation)
    return result.reshape(weight.shape[0], images.shape[0], *size).movedim(1, 0)


def _transposed(
    images: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Compute a transposed convolution, with `weight` (C, O/groups, *kernel).

    It is the correlation of the flipped kernel with `images`, after zeros are inserted between the
    pixels.
    """
    spread = [(size - 1) * step + 1 for size, step in zip(images.shape[2:], stride, strict=True)]
    stuffed = images.new_zeros((*images.shape[:2], *spread))
    pixels: list[Any] = [..., *(slice(None, None, step) for step in stride)]
    stuffed[tuple(pixels)] = images
    edges = [
        gap * (kernel - 1) - edge
        for gap, kernel, edge in zip(dilation, weight.shape[2:], padding, strict=True)
    ]
    # A negative width crops: it removes elements that the padding of the convolution had added.
    widths = [
        width
        for edge, more in zip(reversed(edges), reversed(list(output_padding)), strict=True)
        for width in (edge, edge + more)
    ]
    per_group = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    flipped = per_group.transpose(1, 2).flatten(0, 1).flip(list(range(2, weight.dim())))
    ones, zeros = [1] * len(spread), [0] * len(spread)
    return _correlation(pad(stuffed, widths), flipped, ones, zeros, dilation, groups)


def _layout(images: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Return the memory format of the results: channels last if one of the factors is."""
    layouts = map(suggest_memory_format, (images, weight))
    return next((each for each in layouts if each != PLAIN), PLAIN)


def _patches(
    images: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Return the inputs of each output element: (groups, C/groups * kernel, N * outputs)."""
    rank = len(kernel)
    padded = pad(images, [edge for edge in reversed(list(padding)) for _ in range(2)])
    for axis in range(rank):
        reach = dilation[axis] * (kernel[axis] - 1) + 1
        padded = padded.unfold(axis + 2, reach, stride[axis])[..., :: dilation[axis]]
    # (N, C, *outputs, *kernel) -> (C, *kernel, N, *outputs)
    order = [1, *range(2 + rank, 2 + 2 * rank), 0, *range(2, 2 + rank)]
    columns = padded.permute(order)
    depth = images.shape[1] // groups * prod(kernel)
    return columns.reshape(groups, depth, images.shape[0] * prod(columns.shape[2 + rank :]))


def _grouped(values: torch.Tensor, groups: int) -> torch.Tensor:
    """Return (N, C, *size) as (groups, C/groups, N * size)."""
    return values.transpose(0, 1).reshape(groups, values.shape[1] // groups, -1)


def _output_size(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    return [
        (size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
        for i in range(len(size))
    ]


def _each(value: Sequence[int], images: torch.Tensor) -> list[int]:
    """Return one number for each spatial dimension; ATen allows one number for all of them."""
    numbers = list(value)
    return numbers * (images.dim() - 2) if len(numbers) == 1 else numbers
