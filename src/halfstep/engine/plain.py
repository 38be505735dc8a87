"""A plain step: nothing is scaled, clipped, accumulated, averaged or shared with other processes.

It does what `backward.py` and `step.py` come to then, bit for bit, and without asking at each point
of a step for what is not there: that alone costs a small model's step a tenth. Where a step turns
out not to be plain, nothing has been done yet, and the general way is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.engine.norm import GradientNorm
from halfstep.engine.result import OptimizerStep, StepResult

if TYPE_CHECKING:
    from typing import Self

    from halfstep.engine.assemble import Assembly


class PlainSteps:
    """The plain steps of an engine with one optimizer.

    Args:
        assembly: The engine's parts, for which `of` finds that steps are plain.
    """

    __slots__ = ("_device_type", "_replicas", "_window")

    def __init__(self, assembly: Assembly) -> None:
        (self._window,) = assembly.windows
        self._replicas = assembly.replicas
        self._device_type = assembly.device.type

    @classmethod
    def of(cls, assembly: Assembly, accumulate: int) -> Self | None:
        """Return the plain steps of an engine; None where its parts take part in each step."""
        hooks = assembly.hooks
        parts = (assembly.scales, assembly.clipping, assembly.averages, assembly.evaluates_inside)
        at_points = (hooks.before_backward, hooks.before_step, hooks.step, hooks.after_step)
        takes_part = any(parts) or any(at_points) or assembly.settlement.schedulers
        alone = accumulate == assembly.ranks.size == len(assembly.windows) == 1
        return cls(assembly) if alone and not takes_part else None

    def backward(self, loss: torch.Tensor, *, retain_graph: bool) -> bool:
        """Accumulate the gradients of the only loss of a step; return whether that was plain."""
        window = self._window
        if (
            window.backwards
            or self._replicas.expected
            or step_observer.active is not step_observer.NOBODY
            or torch.is_autocast_enabled(self._device_type)
            or not window.is_as_held()
        ):
            return False
        window.finish_norm()
        try:
            torch.autograd.backward(loss, retain_graph=retain_graph)
        except BaseException:
            window.zero_grad()  # some gradients are there and some are not
            raise
        window.after_backward(scaled=False)
        return True

    def step(self) -> StepResult | None:
        """Step and drop the gradients; None, with nothing done, where that is not plain."""
        window = self._window
        if (
            not window.pending
            or self._replicas.expected
            or step_observer.active is not step_observer.NOBODY
            or not window.norm_can_wait
            or not window.is_as_held()
        ):
            return None
        grads = [param.grad for param in window.params]
        there = [grad for grad in grads if grad is not None and not grad.is_sparse]
        if len(there) != len(grads):
            return None
        norm = GradientNorm(there)
        window.wait_for(norm)
        done = OptimizerStep(closed=True, has_gradients=True, _grad_norm=norm)
        try:
            with window.guard:
                window.optimizer.step()
        finally:
            window.zero_grad()
        return StepResult((done,))
