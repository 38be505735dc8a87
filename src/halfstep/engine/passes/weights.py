"""The weight of each micro-batch: a step's gradient is the mean over its window.

Each loss is weighted before its backward as if its window will be full. This keeps the magnitude of
half-precision gradients the same from step to step. If a window closes early, its gradients are
corrected at that point.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul, truediv
from typing import TYPE_CHECKING, NamedTuple

from halfstep import step_observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from halfstep.engine.processes.ranks import Ranks
    from halfstep.engine.window.window import Window


class Weight(NamedTuple):
    """The weight of a loss: an operation (multiplication or division) and its second operand."""

    operation: Callable[[torch.Tensor, float], torch.Tensor]
    number: float

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """Apply this weight to `value`."""
        return self.operation(value, self.number)

    def applied(self, loss: torch.Tensor) -> torch.Tensor:
        """Apply this weight to a loss, and report it to the observer."""
        weighted = self.of(loss)
        step_observer.active.calls(self.operation, (loss, self.number), weighted)
        return weighted


@dataclass(slots=True)
class MicroBatchWeights:
    """Computes the weights of losses and of windows that are not full.

    Attributes:
        accumulate: Number of micro-steps in a full window.
        samples_per_micro_step: Size of the first micro-batch whose samples were counted (with
            several processes, the largest of their sizes). Other micro-batches are weighted
            relative to it. None if samples are not counted or all micro-batches so far were empty.

    Raises:
        ValueError: If `accumulate` is not a positive number of micro-steps.
    """

    accumulate: int
    samples_per_micro_step: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ValueError(f"accumulate is {self.accumulate!r}; allowed: 1 or more micro-steps")

    def count(
        self, loss: torch.Tensor, samples: int | None, windows: Sequence[Window], ranks: Ranks
    ) -> Weight | None:
        """Count a micro-batch, and return its weight in a full window; None if that is 1.

        Args:
            loss: Mean loss of the micro-batch; processes communicate through its device.
            samples: Number of samples in the micro-batch on this process, possibly 0; None if
                samples are not counted.
            windows: Windows in which the gradients are accumulated.
            ranks: The processes that train together.

        Raises:
            RuntimeError: If `samples` is given for only some micro-batches of a window.
        """
        counted = samples is not None
        for window in windows:
            if window.backwards and window.counts_samples != counted:
                raise RuntimeError(
                    "samples was given for some micro-batches of a window only; give it to every "
                    "engine.backward(loss, samples=len(labels)), or to none"
                )
        for window in windows:
            window.counts_samples = counted
            if samples is not None and not window.pending:
                window.samples += samples
        if samples is not None:
            if self.samples_per_micro_step is None:
                self.samples_per_micro_step = ranks.largest(samples, loss.device) or None
            if samples != self.samples_per_micro_step:
                return Weight(mul, samples / self.full_samples)
        return None if self.accumulate == 1 else Weight(truediv, self.accumulate)

    def set_remaining(self, closing: Sequence[Window], ranks: Ranks) -> None:
        """Set the factor that turns the accumulated gradients of closing windows into means.

        If several processes count samples, `agree` computes the factor later, from `full_samples`.
        """
        for window in closing:
            if not window.counts_samples:
                if window.micro_steps:
                    window.remaining_weight = self.accumulate / window.micro_steps
            elif ranks.size > 1:
                window.full_samples = self.full_samples
            elif window.samples:
                window.remaining_weight = self.full_samples / window.samples

    @property
    def full_samples(self) -> int:
        """Number of samples in a full window on one process; at least 1, as it is a divisor."""
        return (self.samples_per_micro_step or 1) * self.accumulate
