"""`amp.scale_loss`, `amp.disable_casts`, and the handle that undoes O1's patches."""

# ruff: noqa: SLF001  (the underscored names are Apex's, and programs use them)

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from halfstep import step_observer
from halfstep.apex.amp._amp_state import _amp_state
from halfstep.apex.amp.opt import OptimWrapper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer

    from halfstep.apex.amp.function_casts import FunctionCasts
    from halfstep.apex.amp.interfaces import Scaler


@contextmanager
def scale_loss(
    loss: torch.Tensor,
    optimizers: Any,
    loss_id: int = 0,
    model: Any = None,
    delay_unscale: bool = False,
    delay_overflow_check: bool = False,
) -> Iterator[torch.Tensor]:
    """Yield the scaled loss; on exit, unscale and check the gradients of its backward.

    ```python
    with amp.scale_loss(loss, optimizer) as scaled_loss:
        scaled_loss.backward()
    optimizer.step()
    ```

    Args:
        loss: A loss of any shape; it is scaled in fp32.
        optimizers: The optimizer, or a list of the optimizers, whose parameters the backward
            reaches.
        loss_id: Index (from 0) of the loss scale of this loss, among `num_losses` scales.
        model: Not used.
        delay_unscale: Leave the gradients scaled, for another backward in the same accumulation
            window.
        delay_overflow_check: Unscale, but neither update the scale nor skip a step.

    Raises:
        RuntimeError: If `amp.initialize` has not been called, or one of the optimizers was not
            passed to it.
        IndexError: If there is no loss scale with the index `loss_id`.
    """
    del model
    if not hasattr(_amp_state, "opt_properties"):
        raise RuntimeError(
            "Invoked 'with amp.scale_loss`, but internal Amp state has not been initialized. "
            "model, optimizer = amp.initialize(model, optimizer, opt_level=...) must be called "
            "before `with amp.scale_loss`."
        )
    properties = _amp_state.opt_properties
    if not properties.enabled:
        yield loss
        return
    scaler = _scaler(loss_id)
    try:
        if not (properties.master_weights or scaler.dynamic or scaler.loss_scale() != 1.0):
            yield loss.float()
            return
        reached = _reached(optimizers)
        yield _scaled(loss, reached, scaler, delay_unscale=delay_unscale)
        with step_observer.active.work():
            if not delay_unscale and _overflows(reached, scaler, delay_overflow_check):
                for optimizer in reached:
                    optimizer._amp_stash.mark_skip(scaler, loss_id)
        for optimizer in reached:
            optimizer._amp_stash.params_have_scaled_gradients = delay_unscale
    finally:
        if properties.patch_torch_functions:
            _amp_state.handle._clear_cache()


def disable_casts() -> AbstractContextManager[None]:
    """Return a context in which O1 casts nothing; the previous state is restored on exit."""
    handle = getattr(_amp_state, "handle", None)
    return handle._disable_casts() if handle else nullcontext()


class AmpHandle:
    """The handle of O1's patches, which can suspend and undo them.

    Args:
        casts: The patched functions.
        held: Restores other global settings when the patches are undone.
        enable_caching: Whether casts of parameters are cached until the end of `scale_loss`.
        verbose: Whether every cast is printed.
    """

    def __init__(
        self,
        casts: FunctionCasts,
        held: ExitStack,
        *,
        enable_caching: bool = True,
        verbose: bool = False,
    ) -> None:
        self._casts = casts
        self._held = held
        self._enable_caching = enable_caching
        self._verbose = verbose

    @property
    def has_cache(self) -> bool:
        """Whether casts of parameters are cached."""
        return self._enable_caching

    @property
    def cache(self) -> dict[torch.Tensor, torch.Tensor]:
        """The cached casts, by parameter."""
        return self._casts.cache

    @property
    def verbose(self) -> bool:
        """Whether every cast is printed."""
        return self._verbose

    def is_active(self) -> bool:
        """Tell whether the patched functions currently cast."""
        return self._casts.active

    def wrap_optimizer(self, optimizer: Optimizer, num_loss: int = 1) -> OptimWrapper:
        """Return a wrapped optimizer, which has its own `scale_loss`."""
        return OptimWrapper(optimizer, self, num_loss)

    def scale_loss(self, loss: torch.Tensor, optimizer: Optimizer) -> AbstractContextManager[Any]:
        """Raise a RuntimeError: this old API is not supported."""
        del loss, optimizer
        raise RuntimeError(
            "The old Amp API is no longer supported. Please move to the new API: write "
            "model, optimizer = amp.initialize(model, optimizer, opt_level='O1') and "
            "with amp.scale_loss(loss, optimizer) as scaled_loss: scaled_loss.backward()"
        )

    def remove_cache(self, param: torch.Tensor) -> None:
        """Remove the cast of one parameter from the cache."""
        self._casts.cache.pop(param, None)

    def _disable_casts(self) -> AbstractContextManager[None]:
        return self._casts.suspended()

    def _clear_cache(self) -> None:
        self._casts.forget()

    def _deactivate(self) -> None:
        self._casts.restore()
        self._casts.active = False  # for decorated functions, which are not unpatched
        self._held.close()


class NoOpHandle:
    """The handle of `init(enabled=False)`: it casts and scales nothing."""

    has_cache = False
    verbose = False

    def is_active(self) -> bool:
        """Return False."""
        return False

    def wrap_optimizer(self, optimizer: Optimizer, num_loss: int = 1) -> OptimWrapper:
        """Return a wrapped optimizer, whose `scale_loss` does not scale."""
        return OptimWrapper(optimizer, self, num_loss)

    def scale_loss(
        self, loss: torch.Tensor, optimizer: Optimizer
    ) -> AbstractContextManager[torch.Tensor]:
        """Return a context that yields the loss unchanged."""
        del optimizer
        return nullcontext(loss)

    def remove_cache(self, param: torch.Tensor) -> None:
        """Do nothing."""

    def _disable_casts(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _clear_cache(self) -> None:
        pass

    def _deactivate(self) -> None:
        pass


def _scaled(
    loss: torch.Tensor, reached: list[Any], scaler: Scaler, *, delay_unscale: bool
) -> torch.Tensor:
    """Prepare the optimizers for a backward, and return the scaled loss."""
    with step_observer.active.work():
        for optimizer in () if delay_unscale else reached:
            if not optimizer._amp_stash.params_have_scaled_gradients:
                optimizer._prepare_amp_backward()
        wide = loss.float()
        scaled = wide * scaler.loss_scale()
    for optimizer in reached:
        step_observer.active.accumulates(optimizer, optimizer._amp_stash.reached)
    step_observer.active.scales(scaler, scaler, wide, scaled)
    return scaled


def _overflows(reached: list[Any], scaler: Scaler, delay_check: bool) -> bool:
    scaler.clear_overflow_state()
    for optimizer in reached:
        optimizer._post_amp_backward(scaler)
        optimizer._amp_stash.unscaled_by = scaler
        step_observer.active.unscales(scaler, optimizer)
    overflows = not delay_check and scaler.update_scale()
    step_observer.active.updates(scaler)
    return overflows


def _reached(optimizers: Any) -> list[Any]:
    reached = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
    for optimizer in reached:
        if not hasattr(optimizer, "_amp_stash"):
            raise RuntimeError(
                f"amp.scale_loss was given a {type(optimizer).__name__} that amp.initialize has "
                "not returned; write model, optimizer = amp.initialize(model, optimizer, ...)"
            )
    return reached


def _scaler(loss_id: int) -> Scaler:
    scalers = _amp_state.loss_scalers
    if not -len(scalers) <= loss_id < len(scalers):
        raise IndexError(
            f"loss_id is {loss_id}, and amp.initialize was called for {len(scalers)} loss(es); "
            f"allowed: 0 to {len(scalers) - 1}; write amp.initialize(..., num_losses={loss_id + 1})"
        )
    return scalers[loss_id]
