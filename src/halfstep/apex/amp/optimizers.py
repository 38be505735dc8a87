"""Replaces methods of an optimizer for `initialize`: step, zeroing, loading, adding groups.

The methods are replaced on the instance, as programs and schedulers expect, and are not restored.
To skip a step, `scale_loss` sets a mark that the replaced `step` reads.
"""

# ruff: noqa: SLF001  (the underscored names are Apex's, and programs call them)

from __future__ import annotations

import functools
from contextlib import nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from halfstep import step_observer
from halfstep.apex.amp._amp_state import maybe_print
from halfstep.apex.amp.stash import AmpOptimizerState

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from halfstep.apex.amp.properties import Properties
    from halfstep.apex.amp.scaler import LossScaler
    from halfstep.mechanisms.master_weights.technique import MasterWeights


def process_optimizer(
    optimizer: Optimizer,
    properties: Properties,
    masters: MasterWeights | None,
    around_step: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> None:
    """Attach the state and the methods that `scale_loss` uses to an optimizer.

    Args:
        optimizer: An optimizer that was not passed to `initialize` before.
        properties: The current options.
        masters: Creates the master weights of the optimizer; None for no master weights.
        around_step: Returns a context in which the optimizer's own step runs.

    Raises:
        RuntimeError: If the optimizer was passed to `initialize` before, or already has a method
            with the name of an added one.
    """
    refuse_processed(optimizer)
    stash = AmpOptimizerState(masters)
    optimizer._amp_stash = stash  # type: ignore[attr-defined]  # programs reach for it there
    takes_closures = not masters and properties.loss_scale == 1.0
    own_step = optimizer.step
    own_add_param_group = optimizer.add_param_group
    own_load_state_dict = optimizer.load_state_dict

    # A scheduler created earlier has set a mark on `step` and looks for it: `wraps` copies it.
    @functools.wraps(own_step)
    def step(self: Any, closure: Any = None, *args: Any, **kwargs: Any) -> Any:
        if closure is not None and not takes_closures:
            _refuse_closure()
        self._amp_lazy_init()
        scaler, stash.unscaled_by = stash.unscaled_by, None
        if stash.already_patched:
            with step_observer.active.steps(scaler, self, torch.ones(()), None):
                return _skip(self)
        with step_observer.active.steps(scaler, self, None, None), around_step():
            given = args if closure is None else (closure, *args)
            result = own_step(*given, **kwargs)
        stash.copy_masters_to_model()
        stash.drop_master_grads()
        return result

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        self._amp_lazy_init()
        own_add_param_group(param_group)
        stash.sort(self)

    def load_state_dict(self: Any, state_dict: dict[str, Any]) -> None:
        # torch casts loaded state to the format of the parameters, so the masters must exist first.
        self._amp_lazy_init()
        own_load_state_dict(state_dict)

    def lazy_init_with_masters(self: Any) -> None:
        stash.sort(self)
        own_load_state_dict(self.state_dict())  # casts existing state to fp32, as its master

    methods: dict[str, Callable[..., Any]] = {
        **_ADDED,
        "step": step,
        "add_param_group": add_param_group,
    }
    if masters:
        methods |= {
            "zero_grad": _zero_grad,
            "load_state_dict": load_state_dict,
            "_lazy_init_maybe_master_weights": lazy_init_with_masters,
        }
    for name, function in methods.items():
        setattr(optimizer, name, MethodType(function, optimizer))


def refuse_processed(optimizer: Optimizer) -> None:
    """Raise a RuntimeError if an optimizer was passed to `initialize` before."""
    if hasattr(optimizer, "_amp_stash"):
        raise RuntimeError(
            "A given optimizer should only be passed through amp.initialize once. This is a "
            f"{type(optimizer).__name__} that has been; make a new one"
        )
    for name in _ADDED:
        if hasattr(optimizer, name):
            raise RuntimeError(
                f"Incoming optimizer already has {name} defined. Rename it in "
                f"{type(optimizer).__name__}"
            )


def _lazy_init_maybe_master_weights(self: Any) -> None:
    self._amp_stash.sort(self)


def _amp_lazy_init(self: Any) -> None:
    if not self._amp_stash.lazy_init_called:
        self._lazy_init_maybe_master_weights()


def _master_params_to_model_params(self: Any) -> None:
    self._amp_stash.copy_masters_to_model()


def _prepare_amp_backward(self: Any) -> None:
    self._amp_lazy_init()
    self._amp_stash.prepare()


def _post_amp_backward(self: Any, scaler: LossScaler) -> None:
    self._amp_lazy_init()
    self._amp_stash.finish(scaler)


def _zero_grad(self: Any, set_to_none: bool = False) -> None:
    self._amp_lazy_init()
    Optimizer.zero_grad(self, set_to_none=set_to_none)  # the method that doctor watches
    self._amp_stash.zero_grad(set_to_none=set_to_none)


_ADDED: dict[str, Callable[..., Any]] = {
    "_lazy_init_maybe_master_weights": _lazy_init_maybe_master_weights,
    "_amp_lazy_init": _amp_lazy_init,
    "_master_params_to_model_params": _master_params_to_model_params,
    "_prepare_amp_backward": _prepare_amp_backward,
    "_post_amp_backward": _post_amp_backward,
}


def _skip(optimizer: Any) -> None:
    stash = optimizer._amp_stash
    maybe_print(stash.skip_message())
    stash.drop_master_grads()
    stash.already_patched = False
    optimizer._opt_called = True  # so that schedulers do not warn that no step came before them


def _refuse_closure() -> None:
    raise RuntimeError(
        "Currently, Amp does not support closure use with optimizers. Run what the closure does "
        "before optimizer.step(), once, and write optimizer.step(); an optimizer that needs a "
        "closure, such as LBFGS, works with opt_level='O0'"
    )
