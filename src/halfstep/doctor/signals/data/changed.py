"""Writes in place that change the data themselves: `batch = inputs[:32]; batch -= batch.mean()`.

A slice of a tensor, and what a data set returns for an index, may be views of the data. What is
written into them is there in the next epoch, too, so that it is done again and again. Arrays of
NumPy, and lists of samples, count no writes: a few elements of a few samples are compared.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch

from halfstep.doctor.internals import base_of, loader_iterator
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from halfstep.doctor.signals.watched import Watched

PLACES = 4096
_TIMES = 3
_Views = list[np.ndarray[Any, Any]]
_PLACES = 2  # a single one may be a state that the loop carries on
_SAMPLES = 4  # of an array or a list that are compared
_ELEMENTS = 32  # of a sample
_ARITHMETIC = frozenset(
    {
        *("add_", "sub_", "mul_", "div_", "pow_", "sqrt_", "log_", "exp_", "subtract_"),
        *("multiply_", "divide_", "true_divide_"),
        *("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__"),
    }
)


@dataclass(frozen=True, slots=True)
class ChangedData:
    """Data that a training changes in place.

    Attributes:
        by: Name of the function that writes; "" for the data set.
        data: Name of the tensor in the data set; "" for a tensor of the loop.
        places: Number of slices or tensors, or of samples, that were changed.
        times: How often one of them was changed, at least.
        site: The line that writes, or that goes over the loader.
        copy: The method that copies a sample of the data set; "copy" if only some were compared.
    """

    by: str
    data: str
    places: int
    times: int
    site: Site | None
    copy: str = "clone"


@dataclass(frozen=True, slots=True)
class DataChanges:
    """All such data."""

    signal: ClassVar[str] = "changed_data"
    found: tuple[ChangedData, ...] = ()


@dataclass(slots=True, eq=False)
class _Samples:
    """Some samples of a data set, which a loader reads in this process.

    Attributes:
        changes: How often a fetch has changed each of them.
        passes: Number of iterators that have read them.
    """

    changes: list[int]
    passes: int = 0


class Changes(Signal):
    """Counts writes into views of tensors whose parts a model is given, and versions of data."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._tensors: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._count = 0
        self._written: dict[tuple[int, int], tuple[Mark | None, str]] = {}
        self._refilled: set[tuple[int, int]] = set()
        self._uses: defaultdict[tuple[Mark | None, str], Counter[tuple[int, int]]] = defaultdict(
            Counter
        )
        self._sets: WeakKeyDictionary[Any, list[tuple[str, torch.Tensor]]] = WeakKeyDictionary()
        self._samples: dict[tuple[int, str, Mark | None], _Samples] = {}
        self._read: WeakKeyDictionary[Any, list[tuple[_Samples, _Views]]] = WeakKeyDictionary()
        self._fetched: Counter[tuple[int, str, int, Mark | None]] = Counter()
        self._lengths: dict[int, int] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the iterators of data loaders."""
        yield Hook(loader_iterator(), "__next__", self.watched.here(self._on_next))

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note a write into a view."""
        del values
        if len(written) != 1:
            return
        tensor = written[0]
        if tensor.requires_grad or not tensor.dim() or self._count >= PLACES:
            return
        place = self._place(tensor)
        if name in _ARITHMETIC:
            self._written.setdefault(place, (calling_line(), name))  # The first line is to blame.
        else:  # A buffer that is filled again has new data.
            self._written.pop(place, None)
            self._refilled.add(place)

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Count a place that was written and is given to a model."""
        del module, made
        if not self._written or not torch.is_grad_enabled():
            return
        first = next((each for each in given if each.dim()), None)
        place = None if first is None or self._count >= PLACES else self._place(first)
        write = None if place is None else self._written.pop(place, None)
        if place is not None and write is not None:
            self._uses[write][place] += 1

    def _place(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Return the number of the tensor that has the memory of a view, and its place in it."""
        base = base_of(tensor)
        known = self._tensors.get(id(base))
        if known is None or known[0]() is not base:
            self._count += 1
            known = self._tensors[id(base)] = weakref.ref(base), self._count
        return known[1], int(tensor.storage_offset())

    def _on_next(self, original: Any, iterator: Any) -> Any:
        tensors: list[tuple[str, torch.Tensor]] = []
        with self.watched.guard.own():
            tensors = self._tensors_of(iterator)
        before = [each._version for _, each in tensors]
        samples = self._read.get(iterator, ())
        elements = [[each.tobytes() for each in views] for _, views in samples]
        batch = original(iterator)
        for (its, views), old in zip(samples, elements, strict=True):
            for at, (one, other) in enumerate(zip(old, views, strict=True)):
                its.changes[at] += one != other.tobytes()
        if any(
            each._version != version for (_, each), version in zip(tensors, before, strict=True)
        ):
            with self.watched.guard.own():
                for (name, each), version in zip(tensors, before, strict=True):
                    if each._version != version:
                        key = id(each), name, len(each), calling_line()
                        self._fetched[key] += each._version - version
        return batch

    def _tensors_of(self, iterator: Any) -> list[tuple[str, torch.Tensor]]:
        known = self._sets.get(iterator)
        if known is None:
            data = getattr(iterator, "_dataset", None)
            data = getattr(data, "dataset", data)  # of a subset
            if not getattr(iterator, "_num_workers", 0):
                self._read[iterator] = self._samples_of(data)
            known = self._sets[iterator] = [
                (name, each)
                for name, each in getattr(data, "__dict__", {}).items()
                if type(each) is torch.Tensor and each.dim() > 1 and each.is_floating_point()
            ]
        return known

    def _samples_of(self, data: Any) -> list[tuple[_Samples, _Views]]:
        found, mark = [], calling_line()
        for name, value in list(getattr(data, "__dict__", {}).items()):
            views = _views(value)
            if len(views) >= _PLACES and len(self._samples) < PLACES:
                its = self._samples.setdefault((id(data), name, mark), _Samples([0] * len(views)))
                its.passes += 1
                found.append((its, views))
        return [each for each in found if len(each[0].changes) == len(each[1])]

    def freeze(self) -> dict[str, Any]:
        """Return the data that were changed again and again."""
        found = []
        for (mark, name), counts in self._uses.items():
            often = [
                count
                for place, count in counts.items()
                if count >= _TIMES and place not in self._refilled
            ]
            if len(often) >= _PLACES:
                found.append(ChangedData(name, "", len(often), min(often), site(mark)))
        for (_, name, length, mark), count in self._fetched.items():
            if count >= _TIMES * length:
                found.append(ChangedData("", name, length, count // length, site(mark)))
        for (_, name, mark), its in self._samples.items():
            # What changes more often than samples are read is a state of the data set.
            times = min(its.changes)
            if times >= _TIMES and max(its.changes) <= its.passes:
                found.append(ChangedData("", name, len(its.changes), times, site(mark), "copy"))
        return {DataChanges.signal: DataChanges(tuple(found))}


def _views(value: Any) -> _Views:
    """Return views of some samples of an array or a list; none if they are no arrays."""
    if not isinstance(value, np.ndarray | list | tuple) or len(value) < _PLACES:
        return []
    places = sorted({at * (len(value) - 1) // (_SAMPLES - 1) for at in range(_SAMPLES)})
    arrays = [_array(value[at]) for at in places]
    return [
        each.reshape(-1)[:_ELEMENTS]
        for each in arrays
        if each is not None and each.dtype.kind == "f" and each.ndim and each.flags.c_contiguous
    ]


def _array(sample: Any) -> np.ndarray[Any, Any] | None:
    """Return a sample, or the inputs of a pair with its target, as an array that shares memory."""
    first = sample[0] if isinstance(sample, list | tuple) and sample else sample
    if type(first) is torch.Tensor and first.device.type == "cpu" and not first.requires_grad:
        return first.numpy() if first.dtype in {torch.float32, torch.float64} else None
    return first if isinstance(first, np.ndarray) else None
