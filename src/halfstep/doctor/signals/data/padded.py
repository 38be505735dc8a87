"""The latest batches of sequences that the program has padded with `pad_sequence`.

The replay of the last step asks which positions of its inputs are padding.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from halfstep.doctor.internals import padding_of_sequences
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.optim import Optimizer

    from halfstep.doctor.record.sites import Mark

_BATCHES = 8
_LARGEST = 2**20  # elements of a batch that is kept


@dataclass(frozen=True, slots=True, eq=False)
class PaddedBatch:
    """A batch of padded sequences.

    Attributes:
        made: The batch.
        padding: Which positions are padding, in its first two dimensions.
        value: What fills them up.
    """

    made: torch.Tensor
    padding: torch.Tensor
    value: float

    def padding_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return which positions of a tensor are padding; None if it does not hold this batch.

        The tensor may be on another device, may lack the last position, and may be filled up to
        more positions.
        """
        if tensor.ndim != self.made.ndim or tensor.dtype != self.made.dtype:
            return None
        length = self.made.shape[1]
        more = tensor.shape[1] - length
        head, tail = tensor[:, :length].to(self.made.device), tensor[:, length:]
        is_alike = more >= -1 and torch.equal(head, self.made[:, : tensor.shape[1]])
        if not is_alike or not bool((tail == self.value).all()):
            return None
        padding = functional.pad(self.padding[:, : tensor.shape[1]], (0, max(0, more)), value=True)
        return padding.to(tensor.device)

    def fills(self, tokens: torch.Tensor, token: int) -> bool:
        """Return whether a token fills up this batch, from which the rows of others may come."""
        is_of_tokens = self.made.ndim == 2 and self.made.dtype == tokens.dtype
        return is_of_tokens and self.value == token and bool(self.padding.any())


class PaddedBatches(Signal):
    """Keeps the latest of these batches."""

    def __init__(self, watched: Any) -> None:
        super().__init__(watched)
        self._latest: deque[tuple[torch.Tensor, list[int], bool, float]] = deque(maxlen=_BATCHES)
        self._of_step: list[tuple[torch.Tensor, list[int], bool, float]] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the function."""
        yield Hook(*padding_of_sequences(), self.watched.here(self._on_pad))

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Keep those of a step, also if an evaluation pads many others after it."""
        del optimizer, number, mark
        self._of_step = [*self._latest]

    def _on_pad(
        self,
        original: Any,
        sequences: Any,
        batch_first: Any = False,
        padding_value: Any = 0.0,
        padding_side: Any = "right",
    ) -> Any:
        made = original(sequences, batch_first, padding_value, padding_side)
        with self.watched.guard.own():
            is_plain = type(made) is torch.Tensor and not made.requires_grad
            if is_plain and padding_side == "right" and made.ndim > 1 and made.numel() <= _LARGEST:
                lengths = [len(each) for each in sequences]
                self._latest.append((made, lengths, bool(batch_first), float(padding_value)))
        return made

    def latest(self) -> list[PaddedBatch]:
        """Return those before the last step."""
        found = []
        for made, lengths, batch_first, value in self._of_step:
            places = torch.arange(made.shape[1 if batch_first else 0])
            padding = places >= torch.tensor(lengths)[:, None]
            found.append(PaddedBatch(made, padding if batch_first else padding.T, value))
        return found
