"""Operations on gradients, one verb each: put, keep, widen, coalesce, unscale, check, clip.

They run on the device of the gradients, and the host does not wait for them. `Tensor.grad_dtype`
makes autograd accumulate in fp32 for a half parameter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.kernels.native import half

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def put(param: torch.Tensor, grad: torch.Tensor) -> None:
    """Set `param.grad`, and make autograd accumulate into it in the dtype of `grad`."""
    if param.grad_dtype != grad.dtype:
        param.grad = None
        param.grad_dtype = grad.dtype
    param.grad = grad


def keep(param: torch.Tensor, dtype: torch.dtype) -> None:
    """Cast `param.grad` to `dtype`, and make autograd accumulate into it in this dtype."""
    grad = param.grad
    if grad is not None and grad.dtype != dtype:
        put(param, grad.to(dtype))


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which gradients of `dtype` are computed: fp32 or wider."""
    return torch.promote_types(dtype, torch.float32)


def widen(params: Iterable[torch.Tensor]) -> None:
    """Cast half gradients to fp32, and accumulate into them in fp32."""
    for param in params:
        if param.grad is not None:
            keep(param, wide(param.grad.dtype))


def coalesce(params: Iterable[torch.Tensor]) -> None:
    """Coalesce sparse gradients: add up the values that have the same index."""
    for param in params:
        if param.grad is not None and param.grad.is_sparse:
            param.grad = param.grad.coalesce()


def dense(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of the `params` that have one; for a sparse gradient, its values."""
    grads = [param.grad for param in params if param.grad is not None]
    return [grad.values() if grad.is_sparse else grad for grad in grads]


def unscale(grads: Sequence[torch.Tensor], inverse: torch.Tensor, found_inf: torch.Tensor) -> None:
    """Multiply gradients by the inverse of a loss scale in place, and check them for inf and NaN.

    Args:
        grads: Dense gradients of any shape, each fp32 or fp64, on any devices.
        inverse: 1 / loss scale, an fp32 scalar on any device.
        found_inf: fp32 scalar, set to 1 if a gradient contains inf or NaN before the
            multiplication.
    """
    for group in _alike(grads):
        device = group[0].device
        is_here = device == found_inf.device
        here = found_inf if is_here else torch.zeros_like(found_inf, device=device)
        factor = inverse.to(device)
        if not half.unscale(group, factor, here):
            torch._amp_foreach_non_finite_check_and_unscale_(group, here, factor)
        if not is_here:
            found_inf.copy_(torch.maximum(found_inf, here.to(found_inf.device)))


def check(grads: Sequence[torch.Tensor], found_inf: torch.Tensor) -> None:
    """Check gradients for inf and NaN, in one pass for each format and device.

    Args:
        grads: Dense gradients of any shape, format and device. Their values and their version
            counters stay the same.
        found_inf: fp32 scalar, set to 1 if a gradient contains inf or NaN.
    """
    # The kernel writes a product with 1. Through .data, the version counters do not show it.
    same = [torch.view_as_real(grad.data) if grad.is_complex() else grad.data for grad in grads]
    for group in _alike(same):
        device = group[0].device
        if device.type == "cpu" or group[0].dtype != torch.bfloat16:
            here = torch.zeros_like(found_inf, device=device)
            check_in_place(group, here, torch.ones_like(here))
        else:
            # The kernel does not take bf16 on CUDA. The largest magnitude is inf or NaN if an
            # element is; it cannot overflow, as the 2-norm of finite gradients can.
            filled = [grad for grad in group if grad.numel()] or [torch.zeros(1, device=device)]
            largest = torch.stack(torch._foreach_norm(filled, torch.inf))
            here = largest.isfinite().all().logical_not()
        found_inf.copy_(torch.maximum(found_inf, here.to(found_inf)))


def check_in_place(grads: list[torch.Tensor], found_inf: torch.Tensor, one: torch.Tensor) -> None:
    """Do the same in one call for real gradients on the CPU, of any formats.

    Args:
        grads: The gradients. Their values stay the same; their version counters increase.
        found_inf: fp32 scalar, set to 1 if a gradient contains inf or NaN.
        one: The fp32 scalar 1.
    """
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, one)


def multiply(grads: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply dense gradients in place by a scalar on any device."""
    for group in _alike(grads):
        torch._foreach_mul_(group, factor.to(group[0].device))


def norms(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of each gradient, computed in fp32 or wider: shape (len(grads),)."""
    places_of = _places(grads)
    if len(places_of) == 1:
        ((_, dtype),) = places_of
        computed_in = None if wide(dtype) == dtype else wide(dtype)
        return torch.stack(torch._foreach_norm([*grads], 2.0, dtype=computed_in))
    found: list[torch.Tensor] = [torch.empty(0)] * len(grads)
    for (_, dtype), places in places_of.items():
        group = [grads[place] for place in places]
        computed_in = None if wide(dtype) == dtype else wide(dtype)
        for place, norm in zip(
            places, torch._foreach_norm(group, 2.0, dtype=computed_in), strict=True
        ):
            found[place] = norm
    return torch.stack([norm.to(grads[0].device) for norm in found])


def clip_norm(grads: Sequence[torch.Tensor], limit: float, total_norm: torch.Tensor) -> None:
    """Scale all gradients so that their common 2-norm, now `total_norm`, is at most `limit`."""
    multiply(grads, ((total_norm + 1e-6).reciprocal() * limit).clamp(max=1.0))


def clip_value(grads: Sequence[torch.Tensor], limit: float) -> None:
    """Clamp every element of the gradients to [-limit, limit]."""
    for group in _alike(grads):
        torch._foreach_clamp_min_(group, -limit)
        torch._foreach_clamp_max_(group, limit)


def clip_adaptively(param: torch.Tensor, weight: torch.Tensor, limit: float) -> None:
    """Limit the norm of each unit of the gradient to `limit` times the norm of the unit's weights.

    Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization"
    (arXiv:2102.06171), equation 3. A unit is a row of a matrix, a filter of a convolution, or a
    whole vector.

    Args:
        param: A parameter with a gradient, which is changed in place.
        weight: The most precise value of the parameter.
        limit: Largest ratio of the gradient's norm to the weights' norm.

    Raises:
        TypeError: If the gradient is sparse.
    """
    grad = param.grad
    assert grad is not None
    if grad.is_sparse:
        raise TypeError(
            "clip_adaptive compares whole rows of gradient and weight, and a gradient is sparse; "
            "write clip_norm instead, or sparse=False in the embedding"
        )
    grad_norm, weight_norm = _unit_norms(grad), _unit_norms(weight).clamp(min=1e-3)
    allowed = weight_norm * limit
    shrink = allowed / grad_norm.clamp(min=1e-6)
    grad.mul_(torch.where(grad_norm > allowed, shrink, 1.0).to(grad.dtype))


def _unit_norms(tensor: torch.Tensor) -> torch.Tensor:
    exact = tensor.to(wide(tensor.dtype))
    within_unit = tuple(range(1, exact.ndim)) or tuple(range(exact.ndim))
    return exact.square().sum(dim=within_unit, keepdim=True).sqrt()


def _places(grads: Sequence[torch.Tensor]) -> dict[tuple[torch.device, torch.dtype], list[int]]:
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, grad in enumerate(grads):
        places.setdefault((grad.device, grad.dtype), []).append(place)
    return places


def _alike(grads: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Split gradients into lists of one device and one format each."""
    return [[grads[place] for place in places] for places in _places(grads).values()]
