"""The base class of techniques: the hooks through which a technique changes a training step.

A technique overrides the hooks that it needs; by default, a hook does nothing. The engine calls the
hooks of all techniques in the order of their stages. No technique decides when a step happens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.optim import Optimizer


OwnFormats = Callable[[nn.Module], Mapping[nn.Module, str]]
"""A function of a model that returns the modules whose parameters have a format of their own, each
with this format."""


StoragesKept = Callable[[], dict[int, tuple[int, bool]]]
"""A function that returns the storages kept for the backward: address to bytes, and whether they
are compressed."""


class Stage(IntEnum):
    """The order of the techniques: those that may refuse a model come before those that change it.

    A stage relies on the earlier stages: masters are copied before parameters are cast. The forward
    context and the `step` of a technique run inside those of the earlier stages.
    """

    CHECK = 0
    MASTERS = 1
    PARAMETERS = 2
    KERNELS = 3
    OVER_KERNELS = 4
    LAYERS = 5
    FORWARD = 6
    WITHIN_FORWARD = 7


class LayerFormat(NamedTuple):
    """The format in which a layer computes its products.

    Attributes:
        how: "native", "rehearsed" or "left out".
        format: The format, such as "fp8-e4m3"; None for that of the recipe without the technique.
        reason: Why the layer is left out, or from how many samples on it computes natively; "" if
            there is nothing to say.
    """

    how: Literal["native", "rehearsed", "left out"]
    format: str | None = None
    reason: str = ""


class Technique:
    """One mechanism of low-precision training."""

    stage: Stage
    """The position of the technique in the order of all techniques."""

    reshapes_params = False
    """Whether the technique changes the parameters themselves, and so needs an unwrapped model."""

    casts_params = False
    """Whether the technique casts parameters, so that optimizer states must be cast as well."""

    done_by_sharding = False
    """Whether FSDP2 does the same for a sharded model, so that the technique is left out there."""

    replaces_layers = False
    """Whether the technique replaces layers of the models, or changes their class."""

    skips_on_device = True
    """Whether a step that a fused optimizer skips on the device also leaves the technique's state
    unchanged."""

    @property
    def generators(self) -> Iterable[torch.Generator]:
        """The random generators that the technique draws from, as far as they exist yet."""
        return ()

    @property
    def lost_updates(self) -> Iterable[torch.Tensor]:
        """Counters on devices, whose sum is the number of updates so far that round to nothing."""
        return ()

    @property
    def enters_forward(self) -> bool:
        """Whether `forward` returns a context that has an effect."""
        return type(self).forward is not Technique.forward

    @property
    def changes_models(self) -> bool:
        """Whether the technique changes the models, so that no other engine may use them."""
        return self.reshapes_params or self.replaces_layers

    def prepare(self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Change models and optimizers before the first step."""

    def adopt(self, optimizer: Optimizer) -> None:
        """Handle parameters that were added to `optimizer` after `prepare`."""

    def forward(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of a forward pass on `device`.

        DataParallel runs its replicas in threads, and enters the context again in each thread if it
        is a context of torch (autocast, a mode, saved-tensor hooks) or a context variable of
        Python.
        """
        del device
        return nullcontext()

    def model_params(self, params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Map an optimizer's parameters to the model's parameters, which receive the gradients."""
        return list(params)

    def full_precision(self, param: torch.Tensor) -> torch.Tensor:
        """Return the most precise value that the technique keeps of a model parameter."""
        return param

    def before_backward(self, params: Iterable[torch.Tensor], *, again: bool) -> None:
        """Prepare the parameters for the gradients of a backward.

        Args:
            params: The model parameters that the backward may reach.
            again: Whether they already have gradients from the same accumulation window.
        """

    def before_step(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Pass the unscaled, clipped gradients of the model's `params` to `optimizer`.

        The gradients must not be changed in place, because their norm may be read later.
        """

    def step(self, optimizer: Optimizer, take: Callable[[], None]) -> None:
        """Take one optimizer step; `take()` calls `optimizer.step()`."""
        del optimizer
        take()

    def steps_in_one_kernel(self, optimizer: Optimizer) -> bool:
        """Tell whether `step` updates all parameters of `optimizer` itself, on the device.

        It then also skips a step on the device, although the optimizer itself might not.
        """
        del optimizer
        return False

    def after_step(self, optimizer: Optimizer) -> None:
        """Update the model's parameters after an optimizer step that was taken or skipped."""

    def loading(self, optimizer: Optimizer) -> AbstractContextManager[Any]:
        """Return a context in which `optimizer.load_state_dict` keeps the formats of its state."""
        del optimizer
        return nullcontext()

    def layer_formats(self) -> Mapping[nn.Module, LayerFormat]:
        """Return, after `prepare`, the format of each layer that the technique might change."""
        return {}

    def looked_at(self) -> AbstractContextManager[StoragesKept | None]:
        """Return a context in which passes that no step follows leave the technique unchanged.

        The context gives a function that returns the storages that the technique keeps for the
        backward in place of tensors; None if the technique keeps none.
        """
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, as plain containers and tensors."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of `state_dict`."""

    def close(self) -> None:
        """Restore every setting, and remove every hook."""


def no_own_formats(model: nn.Module) -> Mapping[nn.Module, str]:
    """Return an empty mapping: no module of `model` has a format of its own."""
    del model
    return {}


def device_types(models: Iterable[nn.Module]) -> list[str]:
    """Return the device types ("cpu", "cuda") of the parameters of `models`, without repetition."""
    return list(dict.fromkeys(p.device.type for model in models for p in model.parameters()))


def as_function(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a bound method for use as a hook of a module.

    A deep copy of a module copies its hooks, and with a bound method also the method's object. The
    wrapper is shared by the copies instead, and a pickled module contains a no-op in its place.
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
    """Do nothing: the replacement of a hook in an unpickled model."""
