"""`handle.wrap_optimizer`: amp's oldest API, in which a wrapped optimizer scales the losses."""

# ruff: noqa: SLF001  (the underscored names are Apex's, and programs use them)

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from halfstep.apex.amp._amp_state import maybe_print
from halfstep.apex.amp.scaler import LossScaler
from halfstep.apex.amp.stash import AmpOptimizerState

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch.optim import Optimizer

    from halfstep.apex.amp.interfaces import Handle


class OptimWrapper:
    """Wraps an optimizer, and scales each of its losses by a loss scale of its own.

    All other attributes are those of the wrapped optimizer.

    Args:
        optimizer: The optimizer to wrap.
        amp_handle: The handle of O1's patches; losses are scaled while it is active.
        num_loss: Number of losses with a backward before each step.
    """

    def __init__(self, optimizer: Optimizer, amp_handle: Handle, num_loss: int) -> None:
        self._optimizer = optimizer
        self._amp_handle = amp_handle
        self._stash = AmpOptimizerState(None)
        self._scalers = [LossScaler("dynamic") for _ in range(num_loss)]
        self._loss_idx = 0
        self._overflow = False

    def __getattr__(self, name: str) -> Any:
        if name == "_optimizer":  # not set yet while copy or pickle creates an instance
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    @contextmanager
    def scale_loss(self, loss: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yield the scaled loss; on exit, unscale the gradients of its backward.

        Raises:
            RuntimeError: If more than `num_loss` losses are scaled before a step.
        """
        if not self._amp_handle.is_active():
            yield loss
            return
        if self._loss_idx >= len(self._scalers):
            raise RuntimeError(
                f"loss {self._loss_idx + 1} since the last step, and wrap_optimizer was called for "
                f"{len(self._scalers)}; write "
                f"handle.wrap_optimizer(optimizer, num_loss={self._loss_idx + 1})"
            )
        scaler = self._scalers[self._loss_idx]
        self._stash.sort(self._optimizer)
        self._stash.prepare()
        yield loss.float() * scaler.loss_scale()
        scaler.clear_overflow_state()
        self._stash.finish(scaler)
        self._overflow |= scaler.update_scale()
        self._loss_idx += 1

    def step(self, closure: Any = None) -> Any:
        """Take a step, or skip it after an overflow.

        Raises:
            NotImplementedError: If a closure is given.
        """
        if not self._amp_handle.is_active():
            return self._optimizer.step(closure)
        if closure is not None:
            raise NotImplementedError(
                "The `closure` argument is unsupported by the amp optimizer wrapper. Run what it "
                "does before optimizer.step(), and write optimizer.step()"
            )
        self._loss_idx = 0
        self._amp_handle._clear_cache()
        if self._overflow:
            self._overflow = False
            maybe_print("Gradient overflow, skipping update")
            return None
        with self._amp_handle._disable_casts():
            return self._optimizer.step()
