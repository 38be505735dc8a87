"""For `indexing`: rows that were taken from a tensor, and the numbers of these rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from halfstep.doctor.internals import version_of
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.record.sites import Mark


@dataclass(slots=True, eq=False)
class Taken:
    """Rows that were taken from a tensor."""

    source: int
    rows: int
    index: Any
    mark: Mark | None
    step: int
    version: int
    at: int  # number of the call
    drawn: int | None  # number of the call that has made the indices; None if it is unknown
    owner: Any  # the indices of which these are a part
    of: Taken | None = None  # if the tensor is itself taken from another one

    def numbers(self) -> np.ndarray[Any, Any]:
        """Return the indices into the outermost tensor."""
        mine = numbers_of(self.index, self.rows)
        return mine if self.of is None else self.of.numbers()[mine]

    def is_known(self) -> bool:
        """Return whether the indices are still those that were used."""
        mine = not isinstance(self.index, torch.Tensor) or version_of(self.index) == self.version
        return mine and (self.of is None or self.of.is_known())

    def of_step(self) -> tuple[int, int, bytes]:
        """Return what identifies the rows among those that are taken in one step."""
        return self.step, self.root()[0], self.numbers().tobytes()

    def is_mixed(self) -> bool:
        """Return whether the tensor is itself taken from another one, and not by a slice."""
        part = self.of
        while part is not None and part.owner is None:
            part = part.of
        return part is not None

    def root(self) -> tuple[int, int]:
        """Return the number of the outermost tensor, and its number of rows."""
        return (self.source, self.rows) if self.of is None else self.of.root()


def is_mixed(numbers: np.ndarray[Any, Any]) -> bool:
    """Return whether some row comes before one with a smaller number."""
    return bool((np.diff(numbers) < 0).any())


def count_of(index: Any, rows: int) -> int:
    """Return how many rows an index takes; 0 if it is no index of rows."""
    if isinstance(index, slice):
        return len(range(*index.indices(rows)))
    if isinstance(index, torch.Tensor):
        is_index = index.dim() == 1 and index.dtype in {torch.int64, torch.int32}
        return len(index) if is_index else 0
    if isinstance(index, np.ndarray):
        return len(index) if index.ndim == 1 and index.dtype.kind in "iu" else 0
    if isinstance(index, list):
        return len(index) if index and all(type(each) is int for each in index) else 0
    return 0


def numbers_of(index: Any, rows: int) -> np.ndarray[Any, Any]:
    """Return the numbers of the rows that an index takes."""
    if isinstance(index, slice):
        return np.arange(*index.indices(rows))
    if isinstance(index, torch.Tensor):
        index = index.cpu().numpy()
    numbers = np.asarray(index, dtype=np.int64)
    return np.where(numbers < 0, numbers + rows, numbers)
