"""A static and a dynamic loss scaler, which a training loop calls itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class _Scaled:
    cur_scale: float

    @property
    def loss_scale(self) -> float:
        """The current loss scale."""
        return self.cur_scale

    def scale_gradient(
        self, module: object, grad_in: Iterable[torch.Tensor], grad_out: object
    ) -> tuple[torch.Tensor, ...]:
        """Return the gradients multiplied by the scale; for use as a backward hook of a module."""
        del module, grad_out
        return tuple(self.loss_scale * grad for grad in grad_in)

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        """Run the backward of the scaled loss."""
        (loss * self.loss_scale).backward(retain_graph=retain_graph)


class LossScaler(_Scaled):
    """A static loss scale.

    Args:
        scale: The loss scale.
    """

    def __init__(self, scale: float = 1) -> None:
        self.cur_scale = scale

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        """Return False; a static scale does not check gradients."""
        del params
        return False

    def update_scale(self, overflow: bool) -> None:
        """Do nothing."""


class DynamicLossScaler(_Scaled):
    """A dynamic loss scale, which never falls below 1.

    Args:
        init_scale: The initial loss scale.
        scale_factor: Divisor of the scale after an overflow, and factor when it grows.
        scale_window: Number of updates after which the scale grows, counted from the last overflow
            or growth.
    """

    def __init__(
        self, init_scale: float = 2**32, scale_factor: float = 2.0, scale_window: int = 1000
    ) -> None:
        self.cur_scale = init_scale
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = scale_factor
        self.scale_window = scale_window

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        """Tell whether a gradient of `params` has a non-finite value."""
        return any(p.grad is not None and self._has_inf_or_nan(p.grad) for p in params)

    @staticmethod
    def _has_inf_or_nan(x: torch.Tensor) -> bool:
        return not bool(torch.isfinite(x).all())

    def update_scale(self, overflow: bool) -> None:
        """Back off if the gradients of this iteration overflowed, else grow when due."""
        if overflow:
            self.cur_scale = max(self.cur_scale / self.scale_factor, 1)
            self.last_overflow_iter = self.cur_iter
        elif (self.cur_iter - self.last_overflow_iter) % self.scale_window == 0:
            self.cur_scale *= self.scale_factor
        self.cur_iter += 1
