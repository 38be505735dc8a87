"""What the parts of `amp` use of each other where an import would close a circle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import torch


class Handle(Protocol):
    """What O1 patched: `AmpHandle` and `NoOpHandle`."""

    def is_active(self) -> bool:
        """Tell whether functions cast now."""

    def _disable_casts(self) -> AbstractContextManager[None]: ...

    def _clear_cache(self) -> None: ...

    def _deactivate(self) -> None: ...


class Options(Protocol):
    """The options in force: `Properties`."""

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
        """Return what a dynamic scale does not fall below."""

    def clear_overflow_state(self) -> None:
        """Forget what was found in gradients."""

    def unscale_(self, grads: Sequence[torch.Tensor]) -> None:
        """Divide gradients by the scale in place, and remember a non-finite one."""

    def update_scale(self) -> bool:
        """Back off or grow; return whether the step is to be skipped."""
