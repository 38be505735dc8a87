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

    from halfstep.engine.slot import Slot


@dataclass(slots=True)
class MicroBatchWeights:
    """Weights losses and windows.

    Attributes:
        accumulate: Micro-steps of a full window.
        samples_per_micro_step: Size of the first micro-batch that was counted, by which the others
            are weighted; None where samples are not counted.
    """

    accumulate: int
    samples_per_micro_step: int | None = None

    def apply(self, loss: torch.Tensor, samples: int | None, slots: Sequence[Slot]) -> torch.Tensor:
        """Weight the mean loss of a micro-batch.

        Args:
            loss: Scalar.
            samples: Size of the micro-batch, or None.
            slots: Those whose windows it adds to; the samples are counted there.

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
                self.samples_per_micro_step = samples
            if samples != self.samples_per_micro_step:
                return loss * (samples / (self.samples_per_micro_step * self.accumulate))
        return loss if self.accumulate == 1 else loss / self.accumulate

    def missing(self, slot: Slot) -> float:
        """Return the factor between the sum that a window holds and its mean."""
        if slot.samples and self.samples_per_micro_step:
            return self.samples_per_micro_step * self.accumulate / slot.samples
        return self.accumulate / slot.micro_steps if slot.micro_steps else 1.0
