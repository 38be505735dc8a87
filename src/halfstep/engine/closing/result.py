"""The result of `engine.step()`: a snapshot of one step. Values stay on the device until read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from halfstep.engine.window.norm import GradientNorm
    from halfstep.engine.window.window import Window


@dataclass(slots=True, eq=False)  # not frozen: that takes three times as long to create
class OptimizerStep:
    """Result of one engine step for one optimizer. Reading a field may wait for the device.

    Attributes:
        closed: Whether the accumulation window closed. If not, the optimizer was not stepped.
        has_gradients: Whether any parameter had a gradient. If not, the optimizer was not stepped.
    """

    closed: bool
    has_gradients: bool = False
    _found_inf: torch.Tensor | None = None
    _grad_norm: torch.Tensor | GradientNorm | None = None
    _loss_scale: torch.Tensor | None = None

    @property
    def numbers(self) -> tuple[torch.Tensor | None, ...]:
        """The numbers of the step on its device, each a scalar: found_inf, norm, loss scale."""
        norm = self._grad_norm
        on_device = norm if norm is None or isinstance(norm, torch.Tensor) else norm.compute()
        return self._found_inf, on_device, self._loss_scale

    @property
    def found_inf(self) -> bool:
        """Whether a gradient was non-finite; always False if not checked (`nonfinite="apply"`)."""
        return self._found_inf is not None and bool(self._found_inf)

    @property
    def stepped(self) -> bool:
        """Whether the parameters were updated."""
        return self.closed and self.has_gradients and not self.found_inf

    @property
    def skipped(self) -> bool:
        """Whether the window closed and the update was skipped for a non-finite gradient."""
        return self.closed and self.found_inf

    @property
    def grad_norm(self) -> float | None:
        """2-norm of the unscaled gradients before clipping.

        None if the window stayed open, or if no parameter had a gradient.
        """
        return None if self._grad_norm is None else float(self._grad_norm)

    @property
    def loss_scale(self) -> float:
        """The loss scale of this step's gradients; 1 if there is none."""
        return 1.0 if self._loss_scale is None else float(self._loss_scale)

    @property
    def is_sure(self) -> bool:
        """Whether it is known, without reading the device, that the parameters were updated.

        This is so if the gradients were not checked, or if the host has found them finite.
        """
        return self.closed and self.has_gradients and self._found_inf is self._loss_scale is None

    def without_norm(self) -> OptimizerStep:
        """Return a copy without `grad_norm`."""
        return OptimizerStep(
            closed=self.closed,
            has_gradients=self.has_gradients,
            _found_inf=self._found_inf,
            _loss_scale=self._loss_scale,
        )


def result_of(window: Window, *, by_closure: bool) -> OptimizerStep:
    """Return the result of a step for the optimizer of a closing window.

    Args:
        window: The window, with unscaled gradients and their norm, if the step needs it.
        by_closure: Whether the optimizer computes its gradients itself, with a closure.
    """
    return OptimizerStep(
        True,  # noqa: FBT003  (names of arguments cost time here)
        bool(window.grads) or by_closure,
        window.found_inf,
        window.norm(),
        window.loss_scale,
    )


OPEN = OptimizerStep(closed=False)
"""The result for an optimizer whose window stays open."""


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """Result of one engine step, for each optimizer and for all together.

    Attributes:
        optimizers: One entry for each optimizer, in the engine's order.
    """

    optimizers: tuple[OptimizerStep, ...]

    def __getitem__(self, index: int) -> OptimizerStep:
        return self.optimizers[index]

    def __str__(self) -> str:
        """Say what happened, for `print`; reading it waits for the device."""
        if not self.closed:
            return "window open"
        did = "stepped" if self.stepped else "skipped" if self.skipped else "had no gradients"
        return f"{did}, grad_norm {self.grad_norm}, loss_scale {self.loss_scale:g}"

    def without_norms(self) -> StepResult:
        """Return a copy without `grad_norm`, which would keep the gradients in memory."""
        if len(self.optimizers) == 1 and self.optimizers[0].is_sure:
            return _PLAIN
        return StepResult(tuple([each.without_norm() for each in self.optimizers]))

    @property
    def closed(self) -> bool:
        """Whether any accumulation window closed."""
        return any(each.closed for each in self.optimizers)

    @property
    def stepped(self) -> bool:
        """Whether every optimizer with a closed window was stepped; False if no window closed."""
        closed = [each for each in self.optimizers if each.closed]
        return bool(closed) and all(each.stepped for each in closed)

    @property
    def skipped(self) -> bool:
        """Whether any optimizer skipped its update for a non-finite gradient."""
        return any(each.skipped for each in self.optimizers)

    @property
    def found_inf(self) -> bool:
        """Whether any gradient was non-finite; always False if not checked."""
        return any(each.found_inf for each in self.optimizers)

    @property
    def grad_norm(self) -> float | None:
        """2-norm of all gradients of the optimizers whose window closed; None without gradients."""
        norms = [norm for each in self.optimizers if (norm := each.grad_norm) is not None]
        return sum(norm**2 for norm in norms) ** 0.5 if norms else None

    @property
    def loss_scale(self) -> float:
        """The loss scale of the first optimizer whose window closed; 1 if there is none."""
        return next((each.loss_scale for each in self.optimizers if each.closed), 1.0)


_PLAIN = StepResult((OptimizerStep(closed=True, has_gradients=True),))
