"""From which batch of a data loader inputs and targets come, and what workers give twice."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import IterableDataset, default_collate

from halfstep.doctor.internals import base_of, fetcher_of, is_loss, loader_iterator
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.data.collated import in_another_order
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tensors.elements import content
from halfstep.doctor.tensors.makers import Makers, compared
from halfstep.doctor.tensors.nesting import is_in_graph, tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

RECENT = 32
BATCHES = 2048
_ELEMENTS = 16
_SAMPLES = 256  # of a batch
_FEWEST = 4  # different samples of workers
_LOOKS = 4  # batches of a collate function
_LOSSES = frozenset(
    {
        *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    }
)


@dataclass(frozen=True, slots=True)
class CrossedBatches:
    """A loss whose inputs and targets come from different batches of one loader.

    Attributes:
        crossed: Number of calls in which they do, or in which they are parts of one batch that a
            collate function has put into different orders.
        calls: Number of calls whose inputs and targets both come from this loader.
        site: The line of the loss.
        collate: Name of the collate function, if all are such.
    """

    crossed: int
    calls: int
    site: Site | None
    collate: str = ""


@dataclass(frozen=True, slots=True)
class RepeatedBatches:
    """A loader each of whose workers gives the same samples.

    Attributes:
        workers: Number of workers.
        samples: Number of samples of a pass that were looked at.
        different: Number of different ones among them.
        data: Class of the data set.
        site: The line that goes over the loader.
    """

    workers: int
    samples: int
    different: int
    data: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class BatchLedger:
    """All such losses and loaders."""

    signal: ClassVar[str] = "batches"
    crossed: tuple[CrossedBatches, ...] = ()
    repeated: tuple[RepeatedBatches, ...] = ()


@dataclass(slots=True, eq=False)
class _Stream:
    """Some elements of each sample of a pass over the data of several workers, batch by batch."""

    workers: int
    data: str
    mark: Mark | None
    batches: list[torch.Tensor] = field(default_factory=list)


class Batches(Signal):
    """Follows the tensors that a loader gives to the loss."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._from: OrderedDict[int, tuple[weakref.ref[torch.Tensor], int, int]] = OrderedDict()
        self._number = 0
        self._inputs = Makers[tuple[int, int] | None]()
        self._calls: defaultdict[Mark | None, Counter[str | None]] = defaultdict(Counter)
        self._streams: list[_Stream] = []
        self._open: WeakKeyDictionary[Any, _Stream] = WeakKeyDictionary()
        self._moved: defaultdict[str, list[frozenset[int]]] = defaultdict(list)
        self._collate = ""

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the iterators of data loaders."""
        yield Hook(loader_iterator(), "__next__", self.watched.here(self._on_next))

    def _on_next(self, original: Any, iterator: Any) -> Any:
        given: list[Any] = []
        fetcher = fetcher_of(iterator)
        collate = getattr(fetcher, "collate_fn", default_collate)
        name = "" if collate is default_collate else getattr(collate, "__qualname__", "")
        looks = bool(name) and len(self._moved[name]) < _LOOKS

        def collated(samples: Any) -> Any:
            given.extend(samples if isinstance(samples, list) else ())
            return collate(samples)

        try:
            if looks:
                fetcher.collate_fn = collated
            batch = original(iterator)
        except StopIteration:
            self._open.pop(iterator, None)  # Workers that persist give the next pass, too.
            raise
        finally:
            if looks:
                fetcher.collate_fn = collate
        with self.watched.guard.own():
            self._take(iterator, batch, given, name)
        return batch

    def _take(self, iterator: Any, batch: Any, given: list[Any], name: str) -> None:
        self._number += 1
        tensors = tensors_in(batch)[:4]
        data = getattr(iterator, "_dataset", None)
        if given:
            self._moved[name].append(in_another_order(given, tensors))
            self._collate = name.rpartition(".")[2]
        moved = self._moved[name][-1] if self._moved.get(name) else ()
        for place, each in enumerate(tensors):
            number = -self._number if place in moved else self._number
            self._from[id(each)] = weakref.ref(each), id(data), number
        while len(self._from) > RECENT:
            self._from.popitem(last=False)
        workers = getattr(iterator, "_num_workers", 0)
        if workers > 1 and tensors and isinstance(data, IterableDataset):
            stream = self._open.get(iterator)
            if stream is None:
                stream = _Stream(workers, type(data).__name__, calling_line())
                self._open[iterator] = stream
                self._streams.append(stream)
            largest = max(tensors, key=lambda each: each.numel()).detach()
            if len(stream.batches) < BATCHES and largest.numel():
                rows = largest.reshape(len(largest) if largest.ndim > 1 else 1, -1)[:_SAMPLES]
                stream.batches.append(rows[:, :: max(1, rows.shape[1] // _ELEMENTS)].clone())

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note the batch of the inputs."""
        first = given[0] if given else None
        if first is None or is_loss(module) or is_in_graph(first):
            return
        is_training = torch.is_grad_enabled() and any(each.requires_grad for each in made)
        if is_training and self._from:
            self._inputs.add(self.batch_of(first), made)
        else:
            self._inputs.clear()

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Forget the calls of models, whose graph is gone."""
        del losses
        self._inputs.clear()

    def on_call(self, heard: Heard) -> None:
        """Compare the batch of the targets with that of the inputs."""
        if not (heard.name in _LOSSES or heard.module is not None):
            return
        prediction, target = compared(heard.call.args, heard.call.kwargs)
        mine = self._inputs.take(prediction)
        its = self.batch_of(target) if isinstance(target, torch.Tensor) else None
        if mine is not None and its is not None and its[0] == mine[0]:
            is_of_one = abs(its[1]) == abs(mine[1])
            crossed = (self._collate if is_of_one else "") if its[1] != mine[1] else None
            self._calls[calling_line()][crossed] += 1

    def batch_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Return the data set and the number of the batch that a tensor comes from."""
        whole = base_of(tensor)
        known = self._from.get(id(whole))
        return known[1:] if known is not None and known[0]() is whole else None

    def twins(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the other tensors of a batch that have the shape of one of them."""
        mine = self.batch_of(tensor)
        others = [ref() for ref, *place in self._from.values() if mine and (*place,) == mine]
        return [
            each
            for each in others
            if each is not None
            and each is not tensor
            and (each.shape, each.dtype) == (tensor.shape, tensor.dtype)
        ]

    def freeze(self) -> dict[str, Any]:
        """Return the losses and loaders; reads the samples of batches."""
        crossed = [
            CrossedBatches(
                counts.total() - counts[None],
                counts.total(),
                site(mark),
                "" if counts[""] else next(filter(None, counts)),
            )
            for mark, counts in self._calls.items()
            if counts.total() > counts[None]
        ]
        repeated = {each.mark: found for each in self._streams if (found := _repeated(each))}
        return {BatchLedger.signal: BatchLedger(tuple(crossed), tuple(repeated.values()))}


def _repeated(stream: _Stream) -> RepeatedBatches | None:
    """Return a pass in which each sample came from all workers, which give batches in turn."""
    counts: dict[bytes, list[int]] = defaultdict(lambda: [0] * stream.workers)
    for number, batch in enumerate(stream.batches):
        for row in batch:
            counts[content(row)][number % stream.workers] += 1
    whole = sum(min(each) == max(each) for each in counts.values())
    if len(counts) < _FEWEST or whole < 0.9 * len(counts):
        return None
    total = sum(map(sum, counts.values()))
    return RepeatedBatches(stream.workers, total, len(counts), stream.data, site(stream.mark))
