"""Protocols for parts of `amp` that cannot import each other without a circular import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import torch


class Handle(Protocol):
    """The handle of O1's patches: `AmpHandle` or `NoOpHandle`."""

    def is_active(self) -> bool:
        """Tell whether the patched functions currently cast."""

    def _disable_casts(self) -> AbstractContextManager[None]: ...

    def _clear_cache(self) -> None: ...

    def _deactivate(self) -> None: ...


class Options(Protocol):
    """The current options: `Properties`."""

    enabled: bool
    master_weights: bool | None
    patch_torch_functions: bool


class Scaler(Protocol):
    """The loss scale of one loss: `LossScaler`."""

    dynamic: bool
    _loss_scale: float
    _unskipped: int

    def loss_scale(self) -> float:
        """Return the scale."""

    def floor(self) -> float:
        """Return the lower limit of a dynamic scale."""

    def clear_overflow_state(self) -> None:
        """Forget whether non-finite gradients were found."""

    def unscale_(self, grads: Sequence[torch.Tensor]) -> None:
        """Divide gradients by the scale in place, and record whether one is non-finite."""

    def update_scale(self) -> bool:
        """Update the scale; return whether the step is to be skipped."""
