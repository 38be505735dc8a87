"""Native products of quantised tensors, with their gradients.

What surrounds a product on the hardware decides whether it pays. So the input is saved once, in
the narrow format, in the layout of the weight gradient; the gradient of the output is quantised
once for both products; and a weight is quantised once for all micro-steps of a window
(`WeightOperands`). Nothing is read by the host, so that the products can be compiled without a
graph break, and captured in a CUDA graph.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.observed import Product, computing_in
from halfstep.mechanisms.products.product import differentiable_once
from halfstep.mechanisms.products.quantised import Operand

if TYPE_CHECKING:
    from torch import nn

    from halfstep.mechanisms.products.quantised import Native, Role, Sides


class WeightOperands:
    """The quantised weight of a layer, which is written again in place when the weight has changed.

    Args:
        weight: The weight, (out, in, ...).
        native: Quantises the weight.
        dtype: The dtype that the weight is rounded to first; None for its own.
    """

    def __init__(self, weight: nn.Parameter, native: Native, dtype: torch.dtype | None) -> None:
        self.weight: nn.Parameter | None = weight
        self.dtype = dtype or weight.dtype
        self._native = native
        self._sides: Sides = (None, None)
        self._of = (0, 0)
        # Apart from `_of`, because a compiled layer would be compiled again with each new number.
        self._fresh = False

    def refresh(self) -> None:
        """Quantise the weight again, unless this is done already."""
        weight = self.weight
        assert weight is not None
        # A captured graph must not rely on what was done before the capture.
        if self._fresh and self._of == _state(weight) and not _capturing(weight):
            return
        with torch.inference_mode(mode=False), torch.no_grad():
            matrix = weight.detach().flatten(1).to(self.dtype)
            self._sides = self._native.cast(
                matrix, "weight", rows=True, columns=True, out=self._sides
            )
        self._of, self._fresh = _state(weight), True

    def forget(self) -> None:
        """Let the next `refresh` quantise the weight, whatever is known of it."""
        self._fresh = False

    def of(self, weight: torch.Tensor, dtype: torch.dtype) -> Sides:
        """Return the quantised weight for a product in `dtype`, or nothing if it is not at hand."""
        if self.weight is not weight or self.dtype != dtype or not self._fresh:
            return None, None
        # A compiled layer relies on `refresh` at the start of the forward pass.
        if not torch.compiler.is_compiling() and self._of != _state(weight):
            return None, None
        return self._sides

    def __deepcopy__(self, _: dict[int, Any]) -> WeightOperands:
        """Return operands that are never at hand: nothing refreshes those of a copied layer."""
        twin = WeightOperands.__new__(WeightOperands)
        twin.__dict__ = {**self.__dict__, "weight": None, "_sides": (None, None)}
        return twin


def _state(weight: torch.Tensor) -> tuple[int, int]:
    """Return numbers that change if a weight does, apart from changes through `weight.data`."""
    return weight._version, weight.data_ptr()


def _capturing(weight: torch.Tensor) -> bool:
    return weight.is_cuda and torch.cuda.is_current_stream_capturing()


def native_product(
    matrix: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    native: Native,
    quantised: Sides = (None, None),
) -> torch.Tensor:
    """Compute a linear layer by the hardware's product, differentiably once.

    Args:
        matrix: The input, (samples, in).
        weight: The weight, (out, in); its dtype may differ from the input's.
        bias: The bias, or None.
        native: The product of the hardware.
        quantised: The weight, quantised in the input's dtype, if it is at hand.

    Returns:
        The output, (samples, out), in the input's dtype.
    """
    rows, columns = quantised
    if rows is None:
        rounded = weight.detach().to(matrix.dtype)
        rows, columns = native.cast(rounded, "weight", rows=True)[0], None
    assert rows is not None
    result: torch.Tensor = _NativeProduct.apply(
        matrix,
        weight,
        bias,
        rows.values,
        rows.decode,
        columns and columns.values,
        columns and columns.decode,
        native,
        torch.is_grad_enabled(),
    )
    return result


def _marked(native: Native, role: Role) -> AbstractContextManager[None]:
    """Mark products for code that observes the dispatcher, which a compiled layer does not pass."""
    if torch.compiler.is_compiling():
        return nullcontext()
    return computing_in(native.format_of(role))


class _NativeProduct(Product):
    @staticmethod
    def forward(  # autograd takes tensors, not operands
        ctx: Any,
        matrix: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        weight_rows: torch.Tensor,
        weight_rows_decode: torch.Tensor,
        weight_columns: torch.Tensor | None,
        weight_columns_decode: torch.Tensor | None,
        native: Native,
        training: bool,
    ) -> torch.Tensor:
        by_weight = training and ctx.needs_input_grad[1]
        rows, columns = native.cast(matrix, "input", rows=True, columns=by_weight)
        assert rows is not None
        # Without an operand at hand, the weight itself is saved: FSDP2 frees it after the forward.
        kept = (weight,) if weight_columns is None else (weight_columns, weight_columns_decode)
        ctx.save_for_backward(*kept, *(columns or ()))
        ctx.kept, ctx.native = len(kept), native
        ctx.dtypes = matrix.dtype, weight.dtype, None if bias is None else bias.dtype
        right = Operand(weight_rows, weight_rows_decode)
        with _marked(native, "input"):
            return native.multiply(rows, right, matrix.dtype, gradient=False, bias=bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = gradients
        native: Native = ctx.native
        saved = ctx.saved_tensors  # once, because checkpointing allows one read
        matrix_dtype, weight_dtype, bias_dtype = ctx.dtypes
        for_matrix, for_weight, for_bias = ctx.needs_input_grad[:3]
        by_matrix = by_weight = by_bias = None
        rows, columns = native.cast(gradient, "gradient", rows=for_matrix, columns=for_weight)
        if rows is not None:
            if ctx.kept == 1:
                rounded = saved[0].detach().to(matrix_dtype)
                _, weight = native.cast(rounded, "weight", columns=True)
                assert weight is not None
            else:
                weight = Operand(*saved[:2])
            with _marked(native, "gradient"):
                product = native.multiply(rows, weight, matrix_dtype, gradient=True)
            by_matrix = differentiable_once(product)
        if columns is not None:
            value = Operand(*saved[ctx.kept :])
            with _marked(native, "gradient"):
                product = native.multiply(columns, value, matrix_dtype, gradient=True)
            by_weight = differentiable_once(product.to(weight_dtype))
        if bias_dtype is not None and for_bias:
            by_bias = gradient.sum(0, dtype=torch.float32).to(bias_dtype)
        return by_matrix, by_weight, by_bias, None, None, None, None, None, None
