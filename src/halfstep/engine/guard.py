"""Guards, which let only the engine that owns an optimizer or a model step or change it."""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from torch.optim.optimizer import register_optimizer_step_pre_hook

from halfstep.engine.closure import CLOSURE, needs_closure
from halfstep.optim.zero import local_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.mechanisms.technique import Technique

_owned: WeakSet[Optimizer] = WeakSet()
_in_use: WeakSet[ParameterGuard] = WeakSet()


def _is_still(taken: Callable[[], bool]) -> bool:
    """Call `taken`; if it returns True, collect unreachable engines and return its new answer."""
    if not taken():
        return False
    gc.collect()  # closes engines that only a reference cycle keeps alive
    return taken()


class ParameterGuard:
    """Reserves models for one engine if a recipe changes them.

    A second engine would treat rounded weights as the exact ones. And the engine that is closed
    first would change the format of the parameters under the other.

    Args:
        models: The models of an engine.
        techniques: The techniques that implement the engine's recipe.

    Attributes:
        params: The parameters of the models; empty after `close`.
        changes: Whether the recipe changes the models.
    """

    def __init__(self, models: Sequence[nn.Module], techniques: Sequence[Technique]) -> None:
        self.params = frozenset(param for model in models for param in model.parameters())
        self.changes = any(technique.changes_models for technique in techniques)
        self._reshapes = any(technique.reshapes_params for technique in techniques)

    def hold(self) -> None:
        """Reserve the models."""
        _in_use.add(self)
        if self._reshapes:
            # An optimizer outside of engines, which has no `StepGuard`, could step the parameters.
            _refuse_steps_of_others()

    def refuse_taken(self) -> None:
        """Refuse models that another engine has, if the recipe of either engine changes them.

        Raises:
            ValueError: If another open engine has one of the models.
        """
        if _is_still(self._clashes):
            raise ValueError(
                "the model belongs to another engine, and the recipe of one of the two changes the "
                "model; call close() on that engine first, and build the new optimizer after it"
            )

    def _clashes(self) -> bool:
        return any(
            (self.changes or other.changes) and not self.params.isdisjoint(other.params)
            for other in list(_in_use)
        )

    def refuse_step(self, optimizer: Optimizer) -> None:
        """Refuse a step of an optimizer without an engine that would update changed parameters.

        Raises:
            RuntimeError: If the optimizer has no engine and holds parameters that were changed.
        """
        groups = () if optimizer in _owned or not self._reshapes else optimizer.param_groups
        if not all(self.params.isdisjoint(group["params"]) for group in groups):
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() would update parameters that the recipe of an "
                "open engine has changed; pass this optimizer to the engine too, or call close() "
                "on the engine first (an engine dropped in a reference cycle is closed at "
                "gc.collect())"
            )

    def close(self) -> None:
        """Release the models."""
        self.params = frozenset()


@cache
def _refuse_steps_of_others() -> None:
    """From now on, call `refuse_step` of all guards before each step of any optimizer.

    The hook is never removed. An engine in a reference cycle may be garbage-collected while torch
    iterates over the hooks of a step. If the engine removed a hook then, that step would fail.
    """

    def ask(optimizer: Optimizer, *_: Any) -> None:
        for guard in list(_in_use):
            guard.refuse_step(optimizer)

    register_optimizer_step_pre_hook(ask)


class StepGuard:
    """Refuses direct calls of `optimizer.step()`, which bypass the engine that owns the optimizer.

    A second step with the same gradients, or a step with gradients that are still multiplied by the
    loss scale, ruins a run without an error. `optimizer.zero_grad()` is extended to drop all
    gradients that the engine holds, even if the optimizer's own parameters are master weights.

    Args:
        optimizer: The optimizer that an engine owns from now on.
        after_zero_grad: Called after each `optimizer.zero_grad`, with the same arguments.
    """

    def __init__(self, optimizer: Optimizer, after_zero_grad: Callable[..., None]) -> None:
        if _is_still(lambda: optimizer in _owned):
            raise ValueError(
                f"this {type(optimizer).__name__} belongs to another engine; call close() on that "
                "engine first"
            )
        _owned.update((optimizer, local_optimizer(optimizer)))
        self._optimizer = optimizer
        self._handle = optimizer.register_step_pre_hook(self._refuse)
        own = optimizer.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            own(*args, **kwargs)
            after_zero_grad(*args, **kwargs)

        # Set on the instance: state dicts and copies of an optimizer do not contain it.
        self._before = vars(optimizer).get("zero_grad")
        vars(optimizer)["zero_grad"] = zero_grad
        self._closed = False
        self._open = False

    def __enter__(self) -> None:
        """Allow steps of the optimizer inside the context, for the engine itself."""
        self._open = True

    def __exit__(self, *_: object) -> None:
        self._open = False

    def _refuse(self, optimizer: Optimizer, *_: Any) -> None:
        if not self._open and needs_closure(optimizer):
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called directly, but the engine owns this "
                f"optimizer; {CLOSURE}"
            )
        if not self._open:
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called directly, but the engine owns this "
                "optimizer: a second step would apply the same gradients again, or gradients that "
                "are still multiplied by the loss scale; delete the line, engine.step() is enough"
            )

    def close(self) -> None:
        """Release the optimizer. Later calls do nothing, as another engine may own it by then."""
        if not self._closed:
            self._closed = True
            self._handle.remove()
            del vars(self._optimizer)["zero_grad"]
            if self._before is not None:
                vars(self._optimizer)["zero_grad"] = self._before
            _owned.difference_update((self._optimizer, local_optimizer(self._optimizer)))
