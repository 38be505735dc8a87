"""The ways to run a step again: shared by steps on the tape and steps of bundles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from halfstep.doctor.record import Replay
from halfstep.doctor.tensors.summary import is_finite
from halfstep.doctor.tensors.widen import Widen
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record import Birth
    from halfstep.doctor.replay.tracer import Tracer


@dataclass(slots=True)
class Outcome:
    """The results of a replay.

    Attributes:
        losses: The tensors that the backward passes started from.
        gradients: The gradient of each parameter, summed over the backward passes, still multiplied
            by the loss scale. Keys are identities of parameters; for a bundle, indices.
        scale: The loss scale of the last backward; 1 without one.
        ends: The losses and gradients; without a backward, the results of the last call.
        note: The reason why the step did not run to its end; "" if it did.
        differentiated: In a step without a backward, the tensors that `autograd.grad` started from.
    """

    losses: list[torch.Tensor]
    gradients: dict[int, torch.Tensor]
    scale: float
    ends: list[torch.Tensor]
    note: str = ""
    differentiated: list[torch.Tensor] = field(default_factory=list)

    @property
    def finite(self) -> bool:
        """Whether loss and gradients are finite."""
        return all(map(is_finite, self.ends))


class Runs(ABC):
    """A step that can be run again.

    Args:
        iteration: Number of the step.
        why: The reason for running it again.
        loss: The tensor that its last backward was called on in the program; None if unknown.

    Attributes:
        iteration: Number of the step.
        why: The reason for running it again.
        loss: The tensor that its last backward was called on in the program; None if unknown.
    """

    def __init__(self, iteration: int, why: str, loss: torch.Tensor | None) -> None:
        self.iteration = iteration
        self.why = why
        self.loss = loss
        self._plain: Outcome | None = None

    @abstractmethod
    def _run(self, mode: Any = None, scale: float | None = None) -> Outcome:
        """Run the step, under a dispatch mode and at another loss scale if they are given."""

    def plain(self) -> Replay:
        """Run the step unchanged."""
        outcome = self._plain = self._run()
        same = None
        if self.loss is not None and outcome.losses and not outcome.note:
            same = torch.equal(_bits(self.loss), _bits(outcome.losses[-1]))
        return self._replay("plain", outcome, same=same)

    def eager(self) -> Replay:
        """Run the step without compiled code."""
        with torch.compiler.set_stance("force_eager"):
            return self._replay("eager", self._run())

    def fp32(self) -> Replay:
        """Run the step in fp32, without compiled code."""
        with torch.compiler.set_stance("force_eager"):
            return self._replay("fp32", self._run(Widen()))

    def without_tf32(self) -> Replay:
        """Run the step with fp32 products in full precision, not in TF32."""
        with _full_products():
            return self._replay("tf32 off", self._run())

    def at_scale(self, scale: float) -> Replay:
        """Run the step at another loss scale."""
        return self._replay("lower scale", self._run(scale=scale))

    def _births(self, tracer: Tracer, outcome: Outcome) -> tuple[Birth, ...]:
        """Return the births of a traced run, with the number of the step filled in."""
        births = tracer.verdict(outcome.ends)
        return tuple(replace(each, iteration=self.iteration) for each in births)

    def _replay(self, name: str, outcome: Outcome, *, same: bool | None = None) -> Replay:
        losses = outcome.losses or outcome.differentiated
        loss = losses[-1].double().sum().item() / outcome.scale if losses else None
        finite = outcome.finite and not outcome.note
        largest = None
        if finite and outcome.gradients:
            largest = max(
                dense(each).abs().max().item()
                for each in outcome.gradients.values()
                if each.numel()
            )
            largest /= outcome.scale
        return Replay(
            name,
            self.iteration,
            self.why,
            finite,
            loss,
            largest,
            same,
            outcome.scale,
            outcome.note,
        )


@contextmanager
def _full_products() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    # NaN is not equal to itself, so non-finite values become fixed numbers before a comparison.
    return torch.nan_to_num(tensor.detach().double(), nan=-1.2345, posinf=1e305, neginf=-1e305)


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor; of a sparse tensor, its coalesced values."""
    return tensor.coalesce().values() if tensor.is_sparse else tensor


@contextmanager
def no_cudnn() -> Iterator[None]:
    """Let torch use kernels of its own in place of cuDNN's."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def no_hooks() -> Iterator[None]:
    """Ignore the hooks that a forward registers on tensors."""
    register = torch.Tensor.register_hook
    setattr(torch.Tensor, "register_hook", lambda *_: RemovableHandle(OrderedDict()))  # noqa: B010  # a method
    try:
        yield
    finally:
        setattr(torch.Tensor, "register_hook", register)  # noqa: B010
