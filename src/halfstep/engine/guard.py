"""Who may step an optimizer or change a model: the engine that owns it, and nobody past it."""

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

    from halfstep.techniques import Technique

_owned: WeakSet[Optimizer] = WeakSet()
_in_use: WeakSet[ParameterGuard] = WeakSet()


def _is_still(taken: Callable[[], bool]) -> bool:
    """Tell whether something is taken once engines that are garbage have let go of it."""
    if not taken():
        return False
    gc.collect()  # an engine in a reference cycle ends here, if nobody else can reach it
    return taken()


class ParameterGuard:
    """Keep models that a recipe changes to one engine.

    A second engine would take rounded weights for the exact ones, and whichever ends first would
    change the format under the other.

    Args:
        models: The models of an engine.
        techniques: What its recipe is carried out by.

    Attributes:
        params: Their parameters; none once it is closed.
        changes: Whether the recipe changes the models.
    """

    def __init__(self, models: Sequence[nn.Module], techniques: Sequence[Technique]) -> None:
        self.params = frozenset(param for model in models for param in model.parameters())
        self.changes = any(technique.changes_models for technique in techniques)
        self._reshapes = any(technique.reshapes_params for technique in techniques)

    def hold(self) -> None:
        """Take hold of the models."""
        _in_use.add(self)
        if self._reshapes:
            # Whoever steps their parameters may have no engine, and so no guard of its own.
            _refuse_steps_of_others()

    def refuse_taken(self) -> None:
        """Refuse models of another engine, where one of the two changes them.

        Raises:
            ValueError: Naming what to write.
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
        """Refuse a step of an optimizer without an engine that would move reshaped parameters.

        Raises:
            RuntimeError: Naming what to do.
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
        """Let others have the models."""
        self.params = frozenset()


@cache
def _refuse_steps_of_others() -> None:
    """Ask all guards before any optimizer's step, from now on.

    The hook stays. An engine that was dropped in a reference cycle may be collected while torch
    goes through the hooks of a step, and a hook that it then removed would fail that step.
    """

    def ask(optimizer: Optimizer, *_: Any) -> None:
        for guard in list(_in_use):
            guard.refuse_step(optimizer)

    register_optimizer_step_pre_hook(ask)


class StepGuard:
    """Refuse `optimizer.step()` past the engine that owns the optimizer.

    A second step with the same gradients, or one with gradients that are still multiplied by the
    loss scale, ruins a run without a word. `optimizer.zero_grad()` drops what it says.

    Args:
        optimizer: The optimizer that an engine takes over.
        after_zero_grad: Called after `optimizer.zero_grad`, whose own parameters may be masters,
            with what it was called with.
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

        # Of the instance; state dicts and copies of an optimizer leave it behind.
        self._before = vars(optimizer).get("zero_grad")
        vars(optimizer)["zero_grad"] = zero_grad
        self._closed = False
        self._open = False

    def __enter__(self) -> None:
        """Let the engine itself step the optimizer."""
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
        """Give the optimizer back to its caller; once, as it may have another owner by then."""
        if not self._closed:
            self._closed = True
            self._handle.remove()
            del vars(self._optimizer)["zero_grad"]
            if self._before is not None:
                vars(self._optimizer)["zero_grad"] = self._before
            _owned.difference_update((self._optimizer, local_optimizer(self._optimizer)))
