"""Traces steps in FP8 as a GPU with FP8 units runs them.

On a CPU, halfstep emulates FP8 by other operators. So a trace replaces the products of the layers
that a GPU would multiply in FP8 by records of the same products in bf16, with the gain that the table
of gains has for the layer. The same table decides which layers these are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from halfstep.advise.predict.operators import Op
from halfstep.formats import torch_dtype
from halfstep.mechanisms.float8.casts.form import MULTIPLE
from halfstep.mechanisms.float8.field import Float8
from halfstep.mechanisms.float8.gain import Gains, table
from halfstep.mechanisms.float8.native import NativeFloat8
from halfstep.mechanisms.float8.technique import Float8Layers
from halfstep.mechanisms.products.layers import widths
from halfstep.mechanisms.products.quantised import Operand
from halfstep.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.mechanisms.part import Part, Whole
    from halfstep.mechanisms.products.quantised import Role, Sides
    from halfstep.mechanisms.technique import Technique

    Record = Callable[[Op, int], None]

_NATIVE = ("dynamic", "rowwise")
"""Values of the field for which a GPU multiplies natively."""


def why_not(recipe: Recipe, gpu: Gpu) -> str:
    """Return why a trace on a CPU does not tell the cost of a recipe on a GPU; "" if it does."""
    others = [part for part in recipe.parts if not part.traceable and not _is_native(part)]
    if others:
        parts = ", ".join(map(str, others))
        return f"a CPU and a GPU run different operators for this part of the recipe: {parts}"
    if not any(map(_is_native, recipe.parts)):
        return ""
    if gpu.fp8 is None:
        return "the GPU has no FP8 units, and no trace on a CPU tells what emulation costs there"
    if gpu.architecture.startswith("cdna"):
        return (
            "FP8 is native on NVIDIA's GPUs only, and no trace on a CPU tells what emulation costs"
        )
    return ""


def gains(recipe: Recipe, gpu: Gpu) -> Gains | None:
    """Return what decides which layers a GPU multiplies in FP8; None for recipes without FP8."""
    if not any(map(_is_native, recipe.parts)):
        return None
    known = table()["gpus"].get(gpu.key)
    sheet = {"bf16": gpu.fp16, "fp8": gpu.fp8, "bandwidth": gpu.bandwidth, "measured": []}
    return Gains(gpu.key, known or sheet)


def on_gpu(recipe: Recipe, known: Gains, record: Record) -> Recipe:
    """Return a recipe whose FP8 layers are those of a GPU, and whose casts and products only count.

    Args:
        recipe: The recipe.
        known: The gains on the GPU.
        record: Called with each kernel, and how often it runs.
    """
    parts = [
        _OnGpu(part.value, known, record) if _is_native(part) else part for part in recipe.parts
    ]
    return Recipe(recipe.name, parts=parts)


def _is_native(part: Part) -> bool:
    return part.field == Float8.field and part.value in _NATIVE


@dataclass(frozen=True)
class _OnGpu(Float8, abstract=True):
    """The field `float8` on a GPU that is not here."""

    known: Gains
    record: Record

    def techniques(self, whole: Whole, *, seed: int) -> Iterable[Technique]:
        """Return the technique of the field, with counted products."""
        for each in super().techniques(whole, seed=seed):
            assert isinstance(each, Float8Layers)
            yield _Layers(each, self.known, self.record)


class _Layers(Float8Layers):
    """FP8 layers as on a GPU.

    Args:
        like: The technique of the recipe.
        known: The gains on the GPU.
        record: Called with each kernel, and how often it runs.
    """

    def __init__(self, like: Float8Layers, known: Gains, record: Record) -> None:
        super().__init__(
            like._scaling, own_formats=like._own_formats, dtype=like._dtype, gains=known
        )
        self._known, self._record = known, record

    def native(self, layer: nn.Module) -> NativeFloat8 | None:
        """Return a product that is only counted."""
        found = super().native(layer)
        assert found is not None
        return _Counted(found, widths(layer), self._known, self._record)


class _Counted(NativeFloat8):
    """Casts without values, and products that are recorded as those in bf16 with their gain.

    Args:
        like: The product of the hardware.
        layer: The inputs and outputs of the layer.
        known: The gains on the GPU, which include the casts.
        record: Called with each product, and how often it runs.
    """

    def __init__(
        self, like: NativeFloat8, layer: tuple[int, ...], known: Gains, record: Record
    ) -> None:
        super().__init__("rowwise" if like.rowwise else "dynamic", like.fewest)
        self._layer, self._known, self._record = layer, known, record

    def cast(
        self,
        matrix: torch.Tensor,
        role: Role,
        *,
        rows: bool = False,
        columns: bool = False,
        out: Sides = (None, None),
    ) -> Sides:
        """Return the operands of a matrix, without values."""
        height, width = matrix.shape
        padded = height + -height % MULTIPLE
        mine, turned = out
        if rows and mine is None:
            mine = self._operand(matrix, (height, width), role)
        if columns and turned is None:
            turned = self._operand(matrix, (width, padded), role)
        return mine if rows else None, turned if columns else None

    def _operand(self, matrix: torch.Tensor, shape: tuple[int, int], role: Role) -> Operand:
        dtype = torch_dtype(self.format_of(role))
        decodes = (shape[0], 1) if self.rowwise else ()
        return Operand(
            matrix.new_empty(shape, dtype=dtype), matrix.new_empty(decodes, dtype=torch.float32)
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
        """Record the product, and return its result, without values."""
        del bias, fast
        (m, k), n = left.values.shape, len(right.values)
        inputs, outputs = self._layer
        samples = m * n * k // (inputs * outputs)
        op = Op(
            "_scaled_mm",
            "gemm",
            "bf16",
            flops=2 * m * n * k,
            read=2 * (m * k + n * k),
            written=m * n * dtype.itemsize,
            elements=max(m * k, n * k, m * n),
            m=m,
            n=n,
            k=k,
            gain=self._known.gain(samples, inputs, outputs).value,
        )
        self._record(op, 1)
        return left.values.new_empty((m, n), dtype=dtype)
