"""The norm of a step's gradients, computed only when it is read if the step does not need it.

A `StepResult` that is dropped at once, as in most loops, costs nothing. If it is kept, its norm is
computed before the next forward pass, so that the gradients do not stay in memory longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim import SGD, Adam, AdamW

from halfstep.kernels import gradients

if TYPE_CHECKING:
    from torch.optim import Optimizer


class GradientNorm:
    """2-norm over the gradients of one step, which it keeps in memory until it is computed.

    Args:
        grads: Unscaled dense gradients of any shape. They must not change later.
    """

    __slots__ = ("__weakref__", "_grads", "_value")

    def __init__(self, grads: list[torch.Tensor]) -> None:
        self._grads = grads
        self._value: torch.Tensor | None = None

    def compute(self) -> torch.Tensor:
        """Return the norm, a scalar on the device, and release the gradients."""
        if self._value is None:
            self._value = torch.linalg.vector_norm(gradients.norms(self._grads))
            self._grads = []
        return self._value

    def __float__(self) -> float:
        return float(self.compute())


def is_steady(optimizer: Optimizer) -> bool:
    """Tell whether either all steps of an optimizer write to gradients or none does.

    Then the first step shows which. For example, torch's SGD with Nesterov momentum writes to
    gradients if it updates parameters together (foreach). With a step hook of the caller this is
    unknown, because the hook may do anything.
    """
    hooks = optimizer._optimizer_step_pre_hooks  # noqa: SLF001  # there is no public way to count them
    by_the_engine = len(hooks) == 1  # the hook of `StepGuard`
    return by_the_engine and type(optimizer) in {SGD, Adam, AdamW}
