"""Gradients as the engine sees them: their norms, their clipping, their sums.

All of it runs on the device of the gradients and waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from halfstep.engine.parallel.shards import local
from halfstep.techniques.base import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Clipping:
    """How gradients are clipped before the optimizer sees them; at most one limit is set.

    Attributes:
        norm: Largest 2-norm over all gradients of one optimizer.
        value: Largest absolute value of an element.
        adaptive: Largest ratio of the norms of gradient and weight, unit by unit (AGC).

    Raises:
        ValueError: If more than one limit is set, or one is not positive.
    """

    norm: float | None = None
    value: float | None = None
    adaptive: float | None = None

    def __post_init__(self) -> None:
        given = {
            f"clip_{name}": limit
            for name, limit in (
                ("norm", self.norm),
                ("value", self.value),
                ("adaptive", self.adaptive),
            )
            if limit is not None
        }
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both set; allowed: one of them")
        for name, limit in given.items():
            if not limit > 0:
                raise ValueError(f"{name} is {limit!r}; allowed: a number above 0")

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.norm, self.value, self.adaptive))

    def apply(
        self,
        params: Sequence[torch.Tensor],
        total_norm: torch.Tensor,
        full_precision: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Clip the gradients of `params` in place.

        Args:
            params: Parameters that have a gradient.
            total_norm: 2-norm of those gradients, a scalar.
            full_precision: Gives the most precise value of a parameter.
        """
        grads = dense_gradients(params)
        if self.norm is not None:
            coefficient = torch.clamp(self.norm / (total_norm + 1e-6), max=1.0)
            multiply(grads, coefficient)
        elif self.value is not None:
            for group in _by_device(grads):
                torch._foreach_clamp_min_(group, -self.value)
                torch._foreach_clamp_max_(group, self.value)
        elif self.adaptive is not None:
            for param in params:
                _clip_adaptively(param, full_precision(param).detach(), self.adaptive)


def dense_gradients(params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of those `params` that have one; of a sparse one, its values.

    A sparse gradient is coalesced first, since values that share an index are one number. Of one
    that processes share, the part of this process is returned.
    """
    grads = []
    for param in params:
        grad = param.grad
        if grad is None:
            continue
        if grad.is_sparse:
            param.grad = grad = grad.coalesce()
            grad = grad._values()
        grads.append(local(grad))
    return grads


def multiply(grads: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiply `grads` in place by a scalar on any device."""
    for group in _by_device(grads):
        torch._foreach_mul_(group, factor.to(group[0].device))


def norms(grads: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of each gradient, computed in fp32 at least: shape (len(grads),)."""
    found: list[torch.Tensor] = [torch.empty(0)] * len(grads)
    for device_and_dtype, places in _places(grads).items():
        _, dtype = device_and_dtype
        group = [grads[place] for place in places]
        wide = torch.float32 if dtype in HALVES else None
        for place, norm in zip(places, torch._foreach_norm(group, 2.0, dtype=wide), strict=True):
            found[place] = norm
    return torch.stack([norm.to(grads[0].device) for norm in found])


def _places(grads: Sequence[torch.Tensor]) -> dict[tuple[torch.device, torch.dtype], list[int]]:
    places: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, grad in enumerate(grads):
        places.setdefault((grad.device, grad.dtype), []).append(place)
    return places


def _by_device(grads: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    return [[grads[place] for place in places] for places in _places(grads).values()]


def _clip_adaptively(param: torch.Tensor, weight: torch.Tensor, limit: float) -> None:
    """Scale each unit of a gradient to `limit` times the norm of its weights.

    Brock et al., "High-Performance Large-Scale Image Recognition Without Normalization"
    (arXiv:2102.06171), equation 3; a unit is a row of a matrix, a filter of a convolution, and the
    whole of a vector.
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
    wide = tensor.float() if tensor.dtype in HALVES else tensor
    within_unit = tuple(range(1, wide.ndim)) or tuple(range(wide.ndim))
    return wide.square().sum(dim=within_unit, keepdim=True).sqrt()
