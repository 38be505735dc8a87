"""The seam: what a technique may do to a training step.

A technique overrides the hooks in which it differs; every hook does nothing by default. The engine
calls those of all techniques in the order of their stages, and none of them decides when a step
happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.optim import Optimizer


OwnFormats = Callable[[nn.Module], Mapping[nn.Module, str]]
"""Gives modules of a model whose parameters have a format of their own, and which."""

HALVES = (torch.float16, torch.bfloat16)


class Stage(IntEnum):
    """When a technique is applied: those that may refuse a model come before those that change it.

    A stage is built on those before it: masters are copied before parameters are cast, and a
    forward context is entered, and a step carried out, inside those of the stages before.
    """

    CHECK = 0
    MASTERS = 1
    PARAMETERS = 2
    KERNELS = 3
    OVER_KERNELS = 4
    LAYERS = 5
    FORWARD = 6
    WITHIN_FORWARD = 7


class Technique:
    """One mechanism of low-precision training."""

    stage: Stage
    """When it is applied."""

    reshapes_params = False
    """Whether it changes the parameters themselves, and so needs the bare model."""

    casts_params = False
    """Whether an optimizer's state has to follow the format that it gives parameters."""

    done_by_sharding = False
    """Whether FSDP2 does the same for a sharded model, so that it is left out."""

    replaces_layers = False
    """Whether it puts other layers into the models."""

    skips_on_device = True
    """Whether a step that the optimizer itself skips, on the device, leaves nothing behind."""

    @property
    def enters_forward(self) -> bool:
        """Whether `forward` is more than a context that does nothing."""
        return type(self).forward is not Technique.forward

    @property
    def changes_models(self) -> bool:
        """Whether no other engine may train the models at the same time."""
        return self.reshapes_params or self.replaces_layers

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Change models and optimizers before the first step."""

    def adopt(self, optimizer: Optimizer) -> None:
        """Take in parameters that were added to `optimizer` after `prepare`."""

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of a forward pass on `device`.

        DataParallel enters it again in the threads of its replicas, where it is one of torch's
        (autocast, a mode, saved-tensor hooks) or a context variable of Python.
        """
        del device
        return nullcontext()

    def model_params(self, params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Map parameters that an optimizer holds to the model's own, which get the gradients."""
        return list(params)

    def full_precision(self, param: torch.Tensor) -> torch.Tensor:
        """Return the most precise value of a model's parameter that is kept."""
        return param

    def before_backward(self, params: Iterable[torch.Tensor], *, again: bool) -> None:
        """Get ready for gradients.

        Args:
            params: The model parameters that the backward may reach.
            again: Whether gradients of the same window are there already.
        """

    def before_step(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Hand the true, clipped gradients of the model's `params` to `optimizer`.

        Nothing is written to them: their norm may be asked for later.
        """

    def step(self, optimizer: Optimizer, take: Callable[[], None]) -> None:
        """Carry out one optimizer step; `take()` is the optimizer's own."""
        del optimizer
        take()

    def after_step(self, optimizer: Optimizer) -> None:
        """Bring the model's parameters up to date after a step that may have happened."""

    def loading(self, optimizer: Optimizer) -> AbstractContextManager[Any]:
        """Return a context in which `optimizer.load_state_dict` keeps the formats of its state."""
        del optimizer
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs of this technique: plain containers and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""

    def close(self) -> None:
        """Give back every setting and hook."""


def no_own_formats(model: nn.Module) -> Mapping[nn.Module, str]:
    """Give no module of `model` a format of its own."""
    del model
    return {}


def device_types(models: Iterable[nn.Module]) -> list[str]:
    """Return the kinds of device ("cpu", "cuda") that the parameters of `models` are on."""
    return list(dict.fromkeys(p.device.type for model in models for p in model.parameters()))


def as_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a bound method to serve as a module's hook.

    A deep copy of the module copies its hooks, and with a bound method all that it belongs to; this
    one is shared, and a module that is pickled leaves it behind.
    """
    return _SharedHook(method)


class _SharedHook:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __call__(self, *args: Any) -> Any:
        return self._method(*args)

    def __deepcopy__(self, _: dict[int, Any]) -> _SharedHook:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return partial, (_does_nothing,)


def _does_nothing(*_: Any) -> None:
    """Stand for a hook in a model that has come from a file."""
