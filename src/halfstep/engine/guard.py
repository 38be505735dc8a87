"""Who may step an optimizer: the engine that owns it, and nobody past it."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.optim import Optimizer

_owned: WeakSet[Optimizer] = WeakSet()

CLOSURE = (
    "write engine.step(closure=closure), where closure() calls engine.zero_grad(), computes the "
    "loss inside `with engine.autocast():`, calls engine.backward(loss) and returns float(loss)"
)
"""What to write for an optimizer that evaluates the loss inside its step."""


def needs_closure(optimizer: Optimizer) -> bool:
    """Tell whether `optimizer.step` cannot be called without a closure (LBFGS)."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty


class StepGuard:
    """Refuse `optimizer.step()` past the engine that owns the optimizer.

    A second step with the same gradients, or one with gradients that are still multiplied by the
    loss scale, ruins a run without a word.

    Args:
        optimizer: The optimizer that an engine takes over.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if optimizer in _owned:
            raise ValueError(
                f"this {type(optimizer).__name__} belongs to another engine; call close() on that "
                "engine first"
            )
        _owned.add(optimizer)
        self._optimizer = optimizer
        self._handle = optimizer.register_step_pre_hook(self._refuse)
        self._closed = False
        self.open = False

    def _refuse(self, optimizer: Optimizer, *_: Any) -> None:
        if not self.open and needs_closure(optimizer):
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called past the engine, which owns this "
                f"optimizer; {CLOSURE}"
            )
        if not self.open:
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called past the engine, which owns this "
                "optimizer: a second step would apply the same gradients again, or gradients that "
                "are still multiplied by the loss scale; delete the line, engine.step() is enough"
            )

    def close(self) -> None:
        """Give the optimizer back to its caller; once, as it may have another owner by then."""
        if not self._closed:
            self._closed = True
            self._handle.remove()
            _owned.discard(self._optimizer)


def release_all(guards: Iterable[StepGuard]) -> None:
    """Give optimizers back to their caller."""
    for guard in guards:
        guard.close()
