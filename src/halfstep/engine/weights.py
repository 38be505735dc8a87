"""How much each micro-batch counts: a step's gradient is the mean over what its window held.

Losses are weighted before their backward as if the window were full, which keeps the magnitude of
half gradients the same from step to step; a window that closes early is corrected when it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul, truediv
from typing import TYPE_CHECKING, NamedTuple

from halfstep import step_observer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from halfstep.engine.parallel.ranks import Ranks
    from halfstep.engine.window import Window


class Weight(NamedTuple):
    """What a loss is weighted with: an operation on it and a number."""

    operation: Callable[[torch.Tensor, float], torch.Tensor]
    number: float

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """Return a value with this weight."""
        return self.operation(value, self.number)


@dataclass(slots=True)
class MicroBatchWeights:
    """Weights losses and windows.

    Attributes:
        accumulate: Micro-steps of a full window.
        samples_per_micro_step: Size of the first micro-batch that was counted, by which the others
            are weighted (on several processes the largest of them); None where samples are not
            counted, and as long as all micro-batches are empty.

    Raises:
        ValueError: If `accumulate` is not a positive number of micro-steps.
    """

    accumulate: int
    samples_per_micro_step: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ValueError(f"accumulate is {self.accumulate!r}; allowed: 1 or more micro-steps")

    def weigh(
        self, loss: torch.Tensor, samples: int | None, windows: Sequence[Window], ranks: Ranks
    ) -> torch.Tensor:
        """Count a micro-batch, and multiply its mean loss by its weight in a full window.

        The arguments are those of `count`, of which the loss is a scalar.
        """
        weight = self.count(loss, samples, windows, ranks)
        if weight is None:
            return loss
        weighted = weight.of(loss)
        step_observer.active.calls(weight.operation, (loss, weight.number), weighted)
        return weighted

    def count(
        self, loss: torch.Tensor, samples: int | None, windows: Sequence[Window], ranks: Ranks
    ) -> Weight | None:
        """Count a micro-batch, and return its weight in a full window; None if that is 1.

        Args:
            loss: The mean over it, on the device that processes talk by.
            samples: Size of the micro-batch, 0 if this process has none of it; or None.
            windows: Windows that its gradients are accumulated in.
            ranks: The processes that train together.

        Raises:
            RuntimeError: If samples are given for some micro-batches of a window only.
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
        """Set what separates the sums that closing windows hold from their means."""
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
        """Samples of a full window on one process; not 0, as windows are weighted by it."""
        return (self.samples_per_micro_step or 1) * self.accumulate
