"""Who is told what the engine does in a step: nobody, unless doctor watches.

The engine scales, unscales and steps by itself, where somebody who watches a loop from outside sees
tensors change and cannot know why. So it says what it does, on the ground floor, where both can
reach. `active` does nothing until somebody else is put there, and nothing is decided for it.
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
"""What an observer returns that has nothing to do around what happens."""


class StepObserver:
    """What is told; a subclass overrides what it wants to know.

    A `scaler` has its `scale`, a tensor, and its `settings`, a `LossScale`.

    Attributes:
        listens: Whether it hears what is asked of torch. The engine and the loop then say which of
            their calls are no doing of the user's (`work`, `aside`), and losses are multiplied by
            weights and scales, where otherwise a backward begins with their product (`begins`).
    """

    listens = False

    def work(self) -> AbstractContextManager[None]:
        """The engine works: what happens inside is not done by the loop."""
        return NOTHING

    def aside(self) -> AbstractContextManager[None]:
        """What happens inside is done to nothing that is trained: meters, logs, progress."""
        return NOTHING

    def runs(
        self,
        model: Any,
        criterion: Callable[..., Any],
        images: torch.Tensor,
        labels: torch.Tensor,
    ) -> None:
        """A micro-batch is about to run: `criterion(model(images), labels)`, and a backward."""

    def ran(self, loss: torch.Tensor) -> None:
        """The loss of a micro-batch that was told of is there.

        Args:
            loss: Detached, unless the observer `listens`, which would hear that.
        """

    def evaluates(self) -> None:
        """A model is about to be validated."""

    def calls(self, function: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """A loss was made of another one."""

    def scales(self, scaler: Any, own: Any, loss: torch.Tensor, scaled: torch.Tensor) -> None:
        """A loss was multiplied: by the shared `scaler`, or one of its `own`."""

    def begins(self, scaler: Any, weight: Any) -> None:
        """A backward begins with a scale or a weight that its loss is not multiplied by.

        Args:
            scaler: The shared one; None without loss scaling.
            weight: An `operation` and the `number` that weights the loss; None if that is 1.
        """

    def accumulates(self, optimizer: Optimizer, params: Sequence[torch.Tensor]) -> None:
        """A backward may leave gradients in `params`, which stand for the optimizer's own."""

    def unscales(self, scaler: Any, optimizer: Optimizer) -> None:
        """The gradients of an optimizer are true from now on."""

    def steps(
        self,
        scaler: Any,
        optimizer: Optimizer,
        found_inf: torch.Tensor | None,
        grad_norm: torch.Tensor | None,
        gradients: list[torch.Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """An optimizer steps inside, unless a gradient was not finite.

        Args:
            scaler: The shared one; None without loss scaling.
            optimizer: What steps.
            found_inf: Scalar, whether a gradient was not finite; None where nobody looked.
            grad_norm: 2-norm of the true gradients, before clipping; None without any.
            gradients: What it steps with; None where nobody has them in a list.
        """
        del scaler, optimizer, found_inf, grad_norm, gradients
        return NOTHING

    def worked(self) -> None:
        """The engine has ended a step; this observer was active before it, but is not any more."""

    def drops(self, optimizer: Optimizer) -> None:
        """The loop leaves a step out, as its loss was not finite."""

    def updates(self, scaler: Any) -> None:
        """A loss scale may have changed."""

    def restores(self, scaler: Any) -> None:
        """A loss scale was loaded."""

    def closes(self) -> None:
        """An engine is about to undo its recipe: models are still what was trained."""


NOBODY = StepObserver()
"""Stands for an observer where nobody watches."""

active = NOBODY


def observe(observer: StepObserver) -> Callable[[], None]:
    """Tell an observer, until what is returned is called."""
    global active  # a process is watched once
    before, active = active, observer

    def end() -> None:
        global active  # noqa: PLW0603
        active = before

    return end
