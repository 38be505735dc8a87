"""Quantised tensors, and the interface of the formats that quantise them.

A product reads each tensor in a role and along an axis: the dimensions that it sums over. The
forward pass of a linear layer sums over features, the gradient of its weight over samples. A format
with one scale per tensor gives the same values along every axis. A block format scales along the
axis, so each product needs a quantisation of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

Role = Literal["input", "weight", "gradient"]

Axis = tuple[int, ...]
"""The dimensions of a tensor that a product sums over, in ascending order."""


class Quantised(NamedTuple):
    """A tensor in a narrow format.

    Attributes:
        values: The scaled values, in the format's dtype, with the shape of the tensor.
        scale: fp32 scalar by which the whole tensor was multiplied.
        blocks: fp32 tensor that broadcasts to `values`: the number that each value must be
            multiplied by, apart from `scale`. None for a format with one scale per tensor.
    """

    values: torch.Tensor
    scale: torch.Tensor
    blocks: torch.Tensor | None = None

    def widened(self) -> torch.Tensor:
        """Return the values in fp32, still multiplied by `scale`."""
        values = self.values.float()
        return values if self.blocks is None else values * self.blocks


class Quantiser(Protocol):
    """Quantises the tensors of one layer."""

    def quantised(
        self, value: torch.Tensor, role: Role, axis: Axis, *, training: bool = True
    ) -> Quantised:
        """Quantise a tensor of the layer.

        Args:
            value: The tensor: (..., features) or (N, channels, *size) as input or gradient, and the
                layer's weight, (out, in, *window).
            role: What the tensor is to the layer.
            axis: The dimensions of `value` that the product sums over.
            training: Whether the result counts for scales that follow from earlier steps.
        """

    def depends_on_axis(self, role: Role) -> bool:
        """Tell whether the values of a tensor in this role depend on `axis`.

        If they do not, the tensor is quantised once for all products, and saved quantised.
        """

    def format_of(self, role: Role) -> str:
        """Return the name of the format of tensors in this role."""


class Operand(NamedTuple):
    """A factor of a native product, as the hardware reads it.

    Attributes:
        values: A matrix in the format's dtype, contiguous; the product sums over its second axis.
        decode: fp32 tensor that broadcasts to `values`: what they must be multiplied by.
    """

    values: torch.Tensor
    decode: torch.Tensor


Sides = tuple[Operand | None, Operand | None]
"""A matrix as a factor that is summed over its columns, and over its rows (so transposed)."""


class Native(Protocol):
    """Quantises the matrices of one layer and multiplies them, on hardware that has the format.

    Attributes:
        fewest: The number of samples from which on the native product is used. With fewer, the
            layer computes as if the recipe had no such products.
    """

    fewest: int

    def format_of(self, role: Role) -> str:
        """Return the name of the format of matrices in this role."""

    def cast(
        self,
        matrix: torch.Tensor,
        role: Role,
        *,
        rows: bool = False,
        columns: bool = False,
        out: Sides = (None, None),
    ) -> Sides:
        """Quantise a matrix, (samples, features) or (out, in), for one or both of its sides.

        Args:
            matrix: The matrix.
            role: What the matrix is to the layer.
            rows: Whether a product sums over its columns.
            columns: Whether a product sums over its rows. Zeros fill the sum up to the length that
                the hardware needs.
            out: Operands of an earlier call with the same shape, which are written again.
        """

    def multiply(
        self,
        left: Operand,
        right: Operand,
        dtype: torch.dtype,
        *,
        gradient: bool,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply two operands: left.values @ right.values.t(), decoded.

        Args:
            left: The first factor: a gradient, if there is one.
            right: The second factor.
            dtype: The dtype of the result.
            gradient: Whether the result is a gradient.
            bias: A vector to add to each row.
        """
