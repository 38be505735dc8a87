"""Layer and RMS norm as modules with Apex's names, defaults and formats; see `functional.py`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from torch import nn

from halfstep.apex.normalization.functional import (
    Shape,
    as_shape,
    fused_layer_norm,
    fused_layer_norm_affine,
    fused_rms_norm,
    fused_rms_norm_affine,
    manual_rms_norm,
    mixed_dtype_fused_layer_norm_affine,
    mixed_dtype_fused_rms_norm_affine,
)

if TYPE_CHECKING:
    import torch

__all__ = [
    "FusedLayerNorm",
    "FusedRMSNorm",
    "MixedFusedLayerNorm",
    "MixedFusedRMSNorm",
    "fused_layer_norm",
    "fused_layer_norm_affine",
    "fused_rms_norm",
    "fused_rms_norm_affine",
    "manual_rms_norm",
    "mixed_dtype_fused_layer_norm_affine",
    "mixed_dtype_fused_rms_norm_affine",
]


class FusedLayerNorm(nn.LayerNorm):
    """Layer norm whose result has the format of its input.

    Args:
        normalized_shape: Sizes of the last dimensions, over which the layer normalizes.
        eps: Added to the variance.
        elementwise_affine: Whether the layer has a weight and a bias.
        memory_efficient: No effect: torch decides which tensors it saves for the backward.
    """

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(as_shape(normalized_shape), eps, elementwise_affine)
        self.memory_efficient = memory_efficient

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Normalize `input`, of shape (..., *normalized_shape)."""
        if not self.elementwise_affine:
            return fused_layer_norm(input, self.normalized_shape, self.eps)
        return fused_layer_norm_affine(
            input, self.weight, self.bias, self.normalized_shape, self.eps
        )


class MixedFusedLayerNorm(FusedLayerNorm):
    """Layer norm whose result has the format of its weight.

    Raises:
        RuntimeError: If `elementwise_affine` is False.
    """

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        _refuse_not_affine(type(self).__name__, kwargs)
        super().__init__(normalized_shape, eps, memory_efficient=memory_efficient)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Normalize `input`, of shape (..., *normalized_shape)."""
        return mixed_dtype_fused_layer_norm_affine(
            input, self.weight, self.bias, self.normalized_shape, self.eps
        )


class FusedRMSNorm(nn.RMSNorm):
    """RMS norm whose result has the format of its input.

    Args:
        normalized_shape: Sizes of the last dimensions, over which the layer normalizes.
        eps: Added to the mean square.
        elementwise_affine: Whether the layer has a weight.
        memory_efficient: No effect: torch decides which tensors it saves for the backward.
    """

    eps: float

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(as_shape(normalized_shape), eps, elementwise_affine)
        self.memory_efficient = memory_efficient

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Normalize `input`, of shape (..., *normalized_shape)."""
        if not self.elementwise_affine:
            return fused_rms_norm(input, self.normalized_shape, self.eps)
        return fused_rms_norm_affine(input, self.weight, self.normalized_shape, self.eps)


class MixedFusedRMSNorm(FusedRMSNorm):
    """RMS norm whose result has the format of its weight.

    Raises:
        RuntimeError: If `elementwise_affine` is False.
    """

    def __init__(
        self,
        normalized_shape: Shape,
        eps: float = 1e-5,
        *,
        memory_efficient: bool = False,
        **kwargs: Any,
    ) -> None:
        _refuse_not_affine(type(self).__name__, kwargs)
        super().__init__(normalized_shape, eps, memory_efficient=memory_efficient)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Normalize `input`, of shape (..., *normalized_shape)."""
        return mixed_dtype_fused_rms_norm_affine(
            input, self.weight, self.normalized_shape, self.eps
        )


def _refuse_not_affine(name: str, given: dict[str, Any]) -> None:
    """Refuse unknown arguments, and a mixed layer without a weight, which gives its result format.

    Args:
        name: The name of the class, for messages.
        given: Further keyword arguments of the layer.
    """
    unknown = given.keys() - {"elementwise_affine"}
    if unknown:
        raise TypeError(
            f"{name} has no argument {min(unknown)!r}; allowed: normalized_shape, eps and "
            "memory_efficient"
        )
    if "elementwise_affine" in given:
        warnings.warn(f"{name} does not support `elementwise_affine` argument", stacklevel=3)
        if not given["elementwise_affine"]:
            plain = name.removeprefix("Mixed")
            raise RuntimeError(
                f"{name} does not support `elementwise_affine = False`; write {plain}"
            )
