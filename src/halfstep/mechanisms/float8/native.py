"""FP8 products on the hardware's own units, through torch's `scaled_mm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch.nn.functional import ScalingType, scaled_mm

from halfstep.formats import FORMATS
from halfstep.kernels.hardware import has_units
from halfstep.mechanisms.float8.casts.cast import cast
from halfstep.mechanisms.float8.casts.form import Wanted
from halfstep.mechanisms.float8.quantiser import FORMAT_OF, FORMAT_OF_ROWS

if TYPE_CHECKING:
    from halfstep.mechanisms.products.quantised import Operand, Role, Sides

Scaling = Literal["dynamic", "rowwise"]


class NativeFloat8:
    """A `Native` product in FP8.

    Args:
        scaling: "dynamic": one scale per tensor. "rowwise": one for each row of an operand.
        fewest: The number of samples from which on the product is used.
    """

    def __init__(self, scaling: Scaling, fewest: int = 1) -> None:
        self.fewest = max(fewest, 1)
        self.rowwise = scaling == "rowwise"
        self._kind = ScalingType.RowWise if self.rowwise else ScalingType.TensorWise

    def format_of(self, role: Role) -> str:
        """Return the format of matrices in this role."""
        return FORMAT_OF_ROWS if self.rowwise else FORMAT_OF[role]

    def cast(
        self,
        matrix: torch.Tensor,
        role: Role,
        *,
        rows: bool = False,
        columns: bool = False,
        out: Sides = (None, None),
    ) -> Sides:
        """Quantise a matrix; the bits are those of `Float8`, or of `RowwiseFloat8`."""
        format_ = FORMATS[self.format_of(role)]
        wanted = Wanted(rows=rows, columns=columns, rowwise=self.rowwise)
        return cast(matrix.detach(), format_, wanted, out)

    def multiply(
        self,
        left: Operand,
        right: Operand,
        dtype: torch.dtype,
        *,
        gradient: bool,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Multiply; the forward product accumulates fast, as in Transformer Engine and torchao.

        The bias is rounded to the dtype of the product: fp32 or, for half inputs or one scale per
        row, bf16 or fp16.
        """
        # Kernels with a scale per row return bf16, on most GPUs nothing else.
        computed = torch.bfloat16 if self.rowwise else dtype
        # Those that return fp32 take no bias.
        inside = bias is not None and computed != torch.float32
        added = bias.detach().to(computed) if bias is not None and inside else None
        product = self.product(left, right, added, computed, fast=not gradient)
        if bias is not None and not inside:
            product = product + bias.detach()
        return product.to(dtype)

    def product(
        self,
        left: Operand,
        right: Operand,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        *,
        fast: bool,
    ) -> torch.Tensor:
        """Return the product in `dtype`; `fast` sums are not exact in fp32."""
        return scaled_mm(
            left.values,
            right.values.t(),
            left.decode,
            self._kind,
            right.decode.t(),
            self._kind,
            bias=bias,
            output_dtype=dtype,
            use_fast_accum=fast,
        )


def has_native(device: torch.device) -> bool:
    """Tell whether a device has FP8 units that `scaled_mm` uses with these formats."""
    # AMD's first FP8 units have formats of their own.
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.is_available()
        and has_units("fp8-e4m3", device)
    )
