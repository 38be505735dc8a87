"""How much each micro-batch counts: a step's gradient is the mean over what its window held.

Losses are weighted before their backward as if the window were full, which keeps the magnitude of
half gradients the same from step to step; a window that closes early is corrected when it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.engine.parallel.ranks import Ranks
    from halfstep.engine.slot import Slot


@dataclass(frozen=True, slots=True)
class Weight:
    """What separates the sum that a closing window holds from its mean.

    Attributes:
        factor: Multiplies its gradients, the same on all processes.
        samples: Samples in the window of this process, where several processes must add them up;
            else 0.
        full: Samples of a full window on one process.
    """

    factor: float = 1.0
    samples: float = 0
    full: float = 0

    def __bool__(self) -> bool:
        return self.factor != 1.0 or self.samples > 0


@dataclass(slots=True)
class MicroBatchWeights:
    """Weights losses and windows.

    Attributes:
        accumulate: Micro-steps of a full window.
        samples_per_micro_step: Size of the first micro-batch that was counted, by which the others
            are weighted (on several processes the largest of them); None where samples are not
            counted.

    Raises:
        ValueError: If `accumulate` is not a positive number of micro-steps.
    """

    accumulate: int
    samples_per_micro_step: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ValueError(f"accumulate is {self.accumulate!r}; allowed: 1 or more micro-steps")

    def apply(
        self, loss: torch.Tensor, samples: int | None, slots: Sequence[Slot], ranks: Ranks
    ) -> torch.Tensor:
        """Weight the mean loss of a micro-batch.

        Args:
            loss: Scalar.
            samples: Size of the micro-batch, or None.
            slots: Those whose windows it adds to; the samples are counted there.
            ranks: The processes that train together.

        Raises:
            RuntimeError: If samples are given for some micro-batches of a window only.
        """
        for slot in slots:
            counted = slot.samples > 0
            if slot.backwards and counted != (samples is not None):
                raise RuntimeError(
                    "samples was given for some micro-batches of a window only; give it to every "
                    "engine.backward(loss, samples=len(labels)), or to none"
                )
            if samples is not None and not slot.pending:
                slot.samples += samples
        if samples is not None:
            if self.samples_per_micro_step is None:
                self.samples_per_micro_step = ranks.largest(samples, loss.device)
            if samples != self.samples_per_micro_step:
                return loss * (samples / (self.samples_per_micro_step * self.accumulate))
        return loss if self.accumulate == 1 else loss / self.accumulate

    def missing(self, slot: Slot, ranks: Ranks) -> Weight:
        """Return what separates the sum that a window holds from its mean."""
        if slot.samples and self.samples_per_micro_step:
            full = self.samples_per_micro_step * self.accumulate
            if ranks.size > 1:
                return Weight(samples=slot.samples, full=full)
            return Weight(full / slot.samples)
        return Weight(self.accumulate / slot.micro_steps if slot.micro_steps else 1.0)
