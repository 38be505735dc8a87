"""The interface through which the engine reports its actions; only doctor uses it.

The engine scales, unscales and steps by itself. Code that watches a training loop from outside sees
tensors change, but cannot know why. So the engine and the trainer report their actions to `active`.
This module is in the lowest layer, so that both the engine and doctor can import it. By default
`active` is an observer that does nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch.optim import Optimizer

NOTHING: AbstractContextManager[None] = nullcontext()
"""The context that an observer returns if it has nothing to do before and after an action."""


class StepObserver:
    """Receives reports of a training step. A subclass overrides the methods that it needs.

    The argument `scaler` of the methods has the attributes `scale`, a scalar tensor, and
    `settings`, a `LossScale`.

    Attributes:
        listens: Whether the observer intercepts calls of torch functions. If True, the engine and
            the trainer mark their own calls with `work` and `aside`, so that these are not taken
            for calls of the user. The engine then also multiplies the loss by its weight and scale,
            instead of passing their product to the backward as the initial gradient.
    """

    listens = False

    def work(self) -> AbstractContextManager[None]:
        """Return a context for the engine's own work, which is not an action of the loop."""
        return NOTHING

    def aside(self) -> AbstractContextManager[None]:
        """Return a context for work that does not affect training: meters, logs, progress."""
        return NOTHING

    def calls(self, function: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """Report that `function(*args)` computed `result`, a weighted loss, from another loss."""

    def scales(self, scaler: Any, own: Any, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        """Report that a loss was multiplied by a loss scale.

        Args:
            scaler: The shared loss scaler.
            own: The loss scaler that was used: the shared one, or the one of this `loss_id`.
            loss: The loss before scaling.
            scaled: The scaled loss.
        """

    def accumulates(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """Report that a backward may accumulate gradients in `params`.

        Args:
            optimizer: The optimizer that updates `params`.
            params: The model's parameters. The optimizer itself may hold others in their place,
                such as master weights.
        """

    def unscales(self, scaler: Any, optimizer: Optimizer) -> None:
        """Report that the gradients of an optimizer are unscaled from now on."""

    def steps(
        self,
        scaler: Any,
        optimizer: Optimizer,
        found_inf: torch.Tensor | None,
        grad_norm: torch.Tensor | None,
        *,
        finite: bool = False,
    ) -> AbstractContextManager[None]:
        """Return a context in which an optimizer steps, or skips if a gradient is non-finite.

        Args:
            scaler: The shared loss scaler; None without loss scaling.
            optimizer: The optimizer that steps.
            found_inf: Scalar tensor, nonzero if a gradient is non-finite; None if not checked.
            grad_norm: 2-norm of the unscaled gradients before clipping, a scalar tensor; None if it
                was not computed.
            finite: Whether all gradients are known to be finite.
        """
        del scaler, optimizer, found_inf, grad_norm, finite
        return NOTHING

    def drops(self, optimizer: Optimizer) -> None:
        """Report that the loop skips a step because its loss is non-finite."""

    def updates(self, scaler: Any) -> None:
        """Report that a loss scale may have changed."""

    def restores(self, scaler: Any) -> None:
        """Report that the state of a loss scale was loaded."""

    def closes(self) -> None:
        """Report that an engine is about to undo its recipe; the models still have its changes."""


NOBODY = StepObserver()
"""The observer that does nothing."""

active = NOBODY


def observe(observer: StepObserver) -> Callable[[], None]:
    """Make `observer` the active one; return a function that restores the previous one."""
    global active  # one observer for the whole process
    before, active = active, observer

    def end() -> None:
        global active  # noqa: PLW0603
        active = before

    return end
