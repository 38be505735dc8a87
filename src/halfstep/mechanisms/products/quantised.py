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


class Native(Protocol):
    """A matrix product on hardware that has the format."""

    def __call__(
        self, left: Quantised, left_axis: Axis, right: Quantised, right_axis: Axis, /
    ) -> torch.Tensor:
        """Multiply two matrices, each summed over its axis, `(0,)` or `(1,)`.

        Returns:
            The product in fp32, (other dimension of `left`, other dimension of `right`), still
            multiplied by both scales.
        """
