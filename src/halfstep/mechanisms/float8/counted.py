"""FP8 layers on a GPU that is not here: the step runs on tensors without values.

The table of gains decides which layers these are. Their products are counted as those in bf16, with
the gain of the layer, which includes the casts. What is saved in FP8 has its size on the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.formats import torch_dtype
from halfstep.mechanisms.float8.casts.form import MULTIPLE
from halfstep.mechanisms.float8.gain import Gains, table
from halfstep.mechanisms.float8.native import NativeFloat8
from halfstep.mechanisms.float8.technique import Float8Layers
from halfstep.mechanisms.part import CountedProduct
from halfstep.mechanisms.products.layers import widths
from halfstep.mechanisms.products.quantised import Operand

if TYPE_CHECKING:
    from torch import nn

    from halfstep.mechanisms.float8.native import Scaling
    from halfstep.mechanisms.part import Count, Datasheet
    from halfstep.mechanisms.products.quantised import Role, Sides
    from halfstep.mechanisms.technique import OwnFormats


def gains_of(gpu: Datasheet) -> Gains:
    """Return the gains on a GPU; one that the table does not have is predicted by its datasheet."""
    sheet: dict[str, Any] = {
        "bf16": gpu.fp16,
        "fp8": gpu.fp8,
        "bandwidth": gpu.bandwidth,
        "measured": [],
    }
    return Gains(gpu.key, table()["gpus"].get(gpu.key, sheet))


class CountedLayers(Float8Layers):
    """FP8 layers as on a GPU that is not here.

    Args:
        scaling: The source of a tensor's scale.
        gpu: The GPU.
        count: Called with each product.
        own_formats: Returns the modules of a model that have a format of their own.
        dtype: The dtype that products round a weight to first; None for the weight's own.
    """

    def __init__(
        self,
        scaling: Scaling,
        gpu: Datasheet,
        count: Count,
        *,
        own_formats: OwnFormats,
        dtype: torch.dtype | None,
    ) -> None:
        gains = gains_of(gpu)
        super().__init__(scaling, own_formats=own_formats, dtype=dtype, gains=gains)
        self._gains_there, self._count = gains, count

    def native(self, layer: nn.Module) -> NativeFloat8 | None:
        """Return a product that is only counted."""
        like = super().native(layer)
        assert like is not None
        return CountedFloat8(like, widths(layer), self._gains_there, self._count)


class CountedFloat8(NativeFloat8):
    """Casts and products without values.

    Args:
        like: The product of the hardware.
        layer: The inputs and outputs of the layer.
        gains: The gains on the GPU.
        count: Called with each product.
    """

    def __init__(
        self, like: NativeFloat8, layer: tuple[int, ...], gains: Gains, count: Count
    ) -> None:
        super().__init__("rowwise" if like.rowwise else "dynamic", like.fewest)
        self._layer, self._gains, self._count = layer, gains, count

    def cast(
        self,
        matrix: torch.Tensor,
        role: Role,
        *,
        rows: bool = False,
        columns: bool = False,
        out: Sides = (None, None),
    ) -> Sides:
        """Return the operands of a matrix."""
        height, width = matrix.shape
        padded = height + -height % MULTIPLE
        mine, turned = out
        if rows and mine is None:
            mine = self._operand(matrix, (height, width), role)
        if columns and turned is None:
            turned = self._operand(matrix, (width, padded), role)
        return mine if rows else None, turned if columns else None

    def _operand(self, matrix: torch.Tensor, shape: tuple[int, int], role: Role) -> Operand:
        decodes = (shape[0], 1) if self.rowwise else ()
        return Operand(
            matrix.new_empty(shape, dtype=torch_dtype(self.format_of(role))),
            matrix.new_empty(decodes, dtype=torch.float32),
        )

    def product(
        self,
        left: Operand,
        right: Operand,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        *,
        fast: bool,
    ) -> torch.Tensor:
        """Count the product, and return its result."""
        del bias, fast
        (m, k), n = left.values.shape, len(right.values)
        inputs, outputs = self._layer
        gain = self._gains.gain(m * n * k // (inputs * outputs), inputs, outputs)
        self._count(CountedProduct(m, n, k, dtype.itemsize, gain.value))
        return left.values.new_empty((m, n), dtype=dtype)
