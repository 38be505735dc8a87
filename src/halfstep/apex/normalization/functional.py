"""The functions of `apex.normalization.fused_layer_norm`, on torch's kernels.

Arithmetic is at least fp32. The functions differ from torch's in the format of the result: it is
the format of the input or, for the "mixed" functions, of the weight. Under autocast, all tensors
are first cast to autocast's format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.nn import functional as F  # noqa: N812  (torch's own abbreviation)

from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Sequence

Shape: TypeAlias = "int | Sequence[int] | torch.Size"

EPS = 1e-6
"""The default `eps` of the functions; the default of the modules is 1e-5."""


def fused_layer_norm_affine(
    input: torch.Tensor,  # noqa: A002  (Apex's signature, here and below)
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = EPS,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Apply layer norm with weight and bias; the result has the format of `input`."""
    del memory_efficient
    given = _autocast(input, weight, bias)
    return _layer_norm(given[0], normalized_shape, given[1], given[2], eps, given[0].dtype)


def fused_layer_norm(
    input: torch.Tensor,  # noqa: A002
    normalized_shape: Shape,
    eps: float = EPS,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Apply layer norm; the result has the format of `input`."""
    del memory_efficient
    (given,) = _autocast(input)
    return _layer_norm(given, normalized_shape, None, None, eps, given.dtype)


def mixed_dtype_fused_layer_norm_affine(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor,
    normalized_shape: Shape,
    eps: float = EPS,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Apply layer norm with weight and bias; the result has the format of `weight`."""
    del memory_efficient
    given = _autocast(input, weight, bias)
    return _layer_norm(given[0], normalized_shape, given[1], given[2], eps, given[1].dtype)


def fused_rms_norm_affine(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = EPS,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Apply RMS norm with a weight; the result has the format of `input`."""
    del memory_efficient
    given = _autocast(input, weight)
    return _rms_norm(given[0], normalized_shape, given[1], eps, given[0].dtype)


def fused_rms_norm(
    input: torch.Tensor,  # noqa: A002
    normalized_shape: Shape,
    eps: float = EPS,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Apply RMS norm; the result has the format of `input`."""
    del memory_efficient
    (given,) = _autocast(input)
    return _rms_norm(given, normalized_shape, None, eps, given.dtype)


def mixed_dtype_fused_rms_norm_affine(
    input: torch.Tensor,  # noqa: A002
    weight: torch.Tensor,
    normalized_shape: Shape,
    eps: float = EPS,
    memory_efficient: bool = False,
) -> torch.Tensor:
    """Apply RMS norm with a weight; the result has the format of `weight`."""
    del memory_efficient
    given = _autocast(input, weight)
    return _rms_norm(given[0], normalized_shape, given[1], eps, given[1].dtype)


def manual_rms_norm(
    input: torch.Tensor,  # noqa: A002
    normalized_shape: Shape,
    weight: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """Apply RMS norm; the result has the format of `weight` or, if that is None, of `input`."""
    dtype = input.dtype if weight is None else weight.dtype
    return _rms_norm(input, normalized_shape, weight, eps, dtype)


def as_shape(given: Shape) -> list[int]:
    """Return a shape as a list, also if it is given as one int."""
    return [given] if isinstance(given, int) else list(given)


def _autocast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t.to(dtype) if t.is_floating_point() else t for t in tensors)


def _layer_norm(
    given: torch.Tensor,
    shape: Shape,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype,
) -> torch.Tensor:
    with torch.autocast(given.device.type, enabled=False):
        if _one_format(given, weight, dtype):
            # Under O1, F.layer_norm is patched to return fp32.
            return F.layer_norm(given, as_shape(shape), weight, bias, eps).to(dtype)
        return F.layer_norm(_wide(given), as_shape(shape), _wide(weight), _wide(bias), eps).to(
            dtype
        )


def _rms_norm(
    given: torch.Tensor, shape: Shape, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    with torch.autocast(given.device.type, enabled=False):
        return F.rms_norm(_wide(given), as_shape(shape), _wide(weight), eps).to(dtype)


def _one_format(given: torch.Tensor, weight: torch.Tensor | None, dtype: torch.dtype) -> bool:
    return given.dtype == dtype and (weight is None or weight.dtype == dtype)


def _wide(tensor: Any) -> Any:
    return tensor.float() if tensor is not None and tensor.dtype in HALVES else tensor
