"""What `engine.step()` reports: a snapshot of that step, read from the device only when asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from halfstep.engine.norm import GradientNorm


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerStep:
    """What one optimizer did in one engine step. Reading a field may wait for the device.

    Attributes:
        closed: Whether an accumulation window closed; inside one nothing is stepped.
        has_gradients: Whether any parameter had a gradient; without one nothing is stepped.
    """

    closed: bool
    has_gradients: bool = False
    _found_inf: torch.Tensor | None = None
    _grad_norm: torch.Tensor | GradientNorm | None = None
    _loss_scale: torch.Tensor | None = None

    @property
    def found_inf(self) -> bool:
        """Whether a gradient was not finite. Without a loss scale nobody looks: False."""
        return self._found_inf is not None and bool(self._found_inf)

    @property
    def stepped(self) -> bool:
        """Whether the parameters were updated."""
        return self.closed and self.has_gradients and not self.found_inf

    @property
    def skipped(self) -> bool:
        """Whether a window closed and its update was left out, as a gradient was not finite."""
        return self.closed and self.found_inf

    @property
    def grad_norm(self) -> float | None:
        """2-norm of the true gradients before clipping; None where no window closed."""
        return None if self._grad_norm is None else float(self._grad_norm)

    @property
    def loss_scale(self) -> float:
        """The loss scale that the gradients of this step were made with; 1 without one."""
        return 1.0 if self._loss_scale is None else float(self._loss_scale)


OPEN = OptimizerStep(closed=False)
"""Of an optimizer whose window stays open."""


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """What one engine step did, for each optimizer and for all of them together.

    Attributes:
        optimizers: One entry for each optimizer of the engine, in its order.
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
        """Return the same without `grad_norm`, to be kept for long: it keeps no gradients."""
        return StepResult(
            tuple(
                [
                    OptimizerStep(
                        closed=each.closed,
                        has_gradients=each.has_gradients,
                        _found_inf=each._found_inf,  # noqa: SLF001  (of this file)
                        _loss_scale=each._loss_scale,  # noqa: SLF001
                    )
                    for each in self.optimizers
                ]
            )
        )

    @property
    def closed(self) -> bool:
        """Whether an accumulation window closed."""
        return any(each.closed for each in self.optimizers)

    @property
    def stepped(self) -> bool:
        """Whether every optimizer whose window closed updated its parameters."""
        closed = [each for each in self.optimizers if each.closed]
        return bool(closed) and all(each.stepped for each in closed)

    @property
    def skipped(self) -> bool:
        """Whether any optimizer left its update out, as a gradient of its own was not finite."""
        return any(each.skipped for each in self.optimizers)

    @property
    def found_inf(self) -> bool:
        """Whether any gradient was not finite."""
        return any(each.found_inf for each in self.optimizers)

    @property
    def grad_norm(self) -> float | None:
        """2-norm over the optimizers whose window closed; None where none did."""
        norms = [each.grad_norm for each in self.optimizers if each.grad_norm is not None]
        return sum(norm**2 for norm in norms) ** 0.5 if norms else None

    @property
    def loss_scale(self) -> float:
        """The loss scale of the first optimizer whose window closed; 1 without one."""
        return next((each.loss_scale for each in self.optimizers if each.closed), 1.0)
