"""The norm of a step's gradients, where nothing in the step needs it: computed when it is read.

A `StepResult` that is dropped at once, as most loops drop it, costs nothing. One that is kept gets
its norm before the next forward pass, so that no gradient lives longer than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim import SGD, Adam, AdamW

from halfstep.engine.parallel.shards import local
from halfstep.kernels import gradients

if TYPE_CHECKING:
    from torch.optim import Optimizer


class GradientNorm:
    """2-norm over the gradients of one step, which it alone keeps alive.

    Args:
        grads: True gradients of any shape, sparse ones coalesced; nobody changes them any more.
    """

    __slots__ = ("__weakref__", "_grads", "_value")

    def __init__(self, grads: list[torch.Tensor]) -> None:
        self._grads = grads
        self._value: torch.Tensor | None = None

    def compute(self) -> torch.Tensor:
        """Return the norm, a scalar on the device, and let go of the gradients."""
        if self._value is None:
            dense = [local(grad.values() if grad.is_sparse else grad) for grad in self._grads]
            self._value = torch.linalg.vector_norm(gradients.norms(dense))
            self._grads = []
        return self._value

    def __float__(self) -> float:
        return float(self.compute())


def is_steady(optimizer: Optimizer) -> bool:
    """Tell whether all steps of an optimizer write to gradients, or none does, as its first one.

    With Nesterov momentum, torch's SGD does where it updates parameters together. A hook of the
    caller's may do anything.
    """
    hooks = optimizer._optimizer_step_pre_hooks  # noqa: SLF001  # there is no public way to count them
    by_the_engine = len(hooks) == 1  # its own guard
    return by_the_engine and type(optimizer) in {SGD, Adam, AdamW}
