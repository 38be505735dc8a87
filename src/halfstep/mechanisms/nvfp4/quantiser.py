"""Quantises tensors to NVFP4, as published for training (NVIDIA, arXiv:2509.25149, section 4).

A block has 16 elements in E2M1 and a scale in E4M3; the tensor has one scale in fp32, with which
the largest scale of a block is 448. Inputs and gradients have blocks along the axis of the product.
Weights have blocks of 16 x 16, so that the forward and the backward pass multiply the same values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import pad

from halfstep.formats import FORMATS, round_to
from halfstep.mechanisms.products.blocks import Blocks
from halfstep.mechanisms.products.quantised import Quantised

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.kernels.rounding import Rounding
    from halfstep.mechanisms.products.quantised import Axis, Role

SIZE = 16
"""The number of elements in a block, and in each row and column of a block of a weight."""

ELEMENTS, SCALES = FORMATS["fp4-e2m1"], FORMATS["fp8-e4m3"]


class Nvfp4Blocks(NamedTuple):
    """Quantised blocks.

    Attributes:
        elements: The elements, as fp32 numbers that E2M1 represents.
        scales: The scales of the blocks, as fp32 numbers that E4M3 represents; they broadcast to
            `elements`.
        tensor_scale: fp32 scalar, the scale of the tensor.
    """

    elements: torch.Tensor
    scales: torch.Tensor
    tensor_scale: torch.Tensor


def quantised_blocks(
    values: torch.Tensor,
    largest: torch.Tensor,
    rounding: Rounding = "nearest",
    generator: torch.Generator | None = None,
) -> Nvfp4Blocks:
    """Scale and round the blocks of a tensor.

    Args:
        values: The tensor in fp32, with a dimension for the elements of a block.
        largest: The largest magnitude of each block; broadcasts to `values`.
        rounding: How elements are rounded. Scales are rounded to nearest.
        generator: Source of the random numbers of stochastic rounding.
    """
    top = largest.amax() / (SCALES.max * ELEMENTS.max)
    tensor_scale = torch.where(top == 0, torch.ones_like(top), top)
    scales = (largest / ELEMENTS.max / tensor_scale).clamp(SCALES.tiny, SCALES.max)
    scales = scales.to(torch.float8_e4m3fn).float()
    # The order of the operations is that of the hardware's kernels, which multiply by a reciprocal.
    scaled = values * ((1.0 / tensor_scale) / scales)
    scaled = scaled.clamp(-ELEMENTS.max, ELEMENTS.max)
    elements = round_to(
        scaled, ELEMENTS.name, rounding=rounding, overflow="saturate", generator=generator
    )
    return Nvfp4Blocks(elements, scales, tensor_scale)


class Nvfp4:
    """A `Quantiser` with random numbers of its own.

    Args:
        published: Whether gradients are rounded stochastically, and samples are transformed.
        generator: Returns the generator of a device.
        signs: fp32 tensor of `SIZE` signs, those of the random Hadamard transform.
    """

    def __init__(
        self,
        *,
        published: bool,
        generator: Callable[[torch.device], torch.Generator],
        signs: torch.Tensor,
    ) -> None:
        self._published = published
        self._generator = generator
        self._transform = hadamard() * signs

    def depends_on_axis(self, role: Role) -> bool:
        """Return whether the blocks are along the axis: not those of a weight."""
        return role != "weight"

    def format_of(self, role: Role) -> str:
        """Return "nvfp4", in all roles."""
        del role
        return "nvfp4"

    def quantised(
        self, value: torch.Tensor, role: Role, axis: Axis, *, training: bool = True
    ) -> Quantised:
        """Return a tensor's values in bf16, multiplied by the scales of their blocks.

        bf16 represents these products exactly. If samples are transformed, the result is a matrix
        with one row for each sample, and rows of zeros at the end.
        """
        del training
        if role == "weight":
            return _of_weight(value)
        # Those of a linear layer; a convolution cannot sum over mixed positions.
        over_samples = axis == tuple(range(value.dim() - 1))
        if self._published and over_samples:
            value, axis = transformed(value, self._transform), (0,)
        stochastic = self._published and role == "gradient"
        blocks = Blocks.of(value, axis, SIZE)
        found = quantised_blocks(
            blocks.values,
            blocks.largest(),
            "stochastic" if stochastic else "nearest",
            self._generator(value.device) if stochastic else None,
        )
        return _result(blocks.joined(found.elements * found.scales), found)


def _of_weight(weight: torch.Tensor) -> Quantised:
    """Quantise a weight, (out, in, *window), in blocks of 16 x 16 for each place of the window."""
    rows, columns = weight.shape[:2]
    blocks = weight.detach().float().reshape(rows // SIZE, SIZE, columns // SIZE, SIZE, -1)
    found = quantised_blocks(blocks, blocks.abs().amax((1, 3), keepdim=True))
    return _result((found.elements * found.scales).view(weight.shape), found)


def _result(values: torch.Tensor, found: Nvfp4Blocks) -> Quantised:
    return Quantised(values.bfloat16(), 1.0 / found.tensor_scale)


def hadamard() -> torch.Tensor:
    """Return the orthonormal Hadamard matrix with `SIZE` rows, in fp32 (Sylvester)."""
    matrix = torch.ones(1, 1)
    while len(matrix) < SIZE:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix.div(SIZE**0.5)


def transformed(value: torch.Tensor, transform: torch.Tensor) -> torch.Tensor:
    """Transform the samples of a tensor, in groups of `SIZE`.

    Args:
        value: The tensor, (..., features).
        transform: An orthonormal matrix, (SIZE, SIZE).

    Returns:
        A matrix in fp32 with one row for each sample, and rows for zeros that fill the last group.
        The product of two such matrices, summed over the rows, is that of the tensors.
    """
    rows = value.detach().float().reshape(-1, value.shape[-1])
    groups = pad(rows, [0, 0, 0, -len(rows) % SIZE]).unflatten(0, (-1, SIZE))
    mixed: torch.Tensor = torch.matmul(transform.to(rows.device), groups)
    return mixed.flatten(0, 1)
