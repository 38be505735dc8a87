"""The ledger of passes: which samples the data loaders of a program have drawn, in which order.

A pass begins when a loop asks a loader for an iterator. Indices are drawn in the main process, also
for a loader with workers. They are only kept while the program runs, and compared at its end.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import field
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from halfstep.doctor.internals import loader_iterator
from halfstep.doctor.record.passes import (
    EmptyLoader,
    LoaderPasses,
    Overlap,
    PassLedger,
    UnmatchedPasses,
)
from halfstep.doctor.record.sites import Mark, calling_line, library_here, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.data.overlap import overlap, root_of
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

PASSES = 4096
INDICES = 250_000
_PARTS = 64  # data sets
_DRAWING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


@dataclass(slots=True, eq=False)
class _Whole:
    """The data set of which a loader has a part, which may be gone at the end of the program."""

    number: int
    length: int
    part: Sequence[int] | None  # indices of the part; None for all


@dataclass(slots=True, eq=False)
class _Pass:
    mark: Mark | None
    loader: int
    data: int
    samples: int | None
    batches: int
    sampler: Any
    size: int  # of batches; 0 if a batch sampler makes them
    drawn: list[Sequence[int]] = field(default_factory=list)
    taken: int = 0
    backwards: int = 0
    evaluations: int = 0
    reaches: str = ""
    is_over: bool = False
    after_end: int = 0
    models: set[int] = field(default_factory=set)
    whole: _Whole | None = None
    number: int = -1
    made: Mark | None = None

    @property
    def trains(self) -> bool:
        """Whether backward passes followed its batches; the first may belong to another loader."""
        return self.backwards > bool(self.evaluations)

    @property
    def indices(self) -> list[int]:
        return [each for batch in self.drawn for each in batch]


class Passes(Signal):
    """Follows the iterators of data loaders."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._loaders: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._numbers = count()  # Loaders may go, so their number is not that of a new one.
        self._made: WeakKeyDictionary[Any, Mark | None] = WeakKeyDictionary()
        self._passes: list[_Pass] = []
        self._open: WeakKeyDictionary[Any, _Pass] = WeakKeyDictionary()
        self._given: list[_Pass] = []  # since the last backward
        self._beginning: _Pass | None = None
        self._room = INDICES
        self._wholes: dict[int, tuple[Any, _Whole]] = {}  # by data set
        self._roots: dict[int, tuple[Any, int]] = {}
        self._root_numbers = count()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of loaders and their iterators."""
        iterator = loader_iterator()
        yield Hook(DataLoader, "__init__", self.watched.here(self._on_loader))
        yield Hook(DataLoader, "__iter__", self.watched.here(self._on_iter))
        yield Hook(iterator, "_next_index", self.watched.here(self._on_index))
        yield Hook(iterator, "__next__", self.watched.here(self._on_next))

    def _on_loader(self, original: Any, loader: Any, /, *args: Any, **kwargs: Any) -> None:
        original(loader, *args, **kwargs)
        with self.watched.guard.own():
            self._made[loader] = calling_line()

    def _on_iter(self, original: Any, loader: Any) -> Any:
        begun = None
        with self.watched.guard.own():
            begun = self._begin(loader)
        if begun is None:
            return original(loader)
        # Workers prefetch: the first indices are drawn before the iterator is returned.
        before, self._beginning = self._beginning, begun
        try:
            result = original(loader)
        finally:
            self._beginning = before
        with self.watched.guard.own():
            self._open[result] = begun
        return result

    def _begin(self, loader: Any) -> _Pass | None:
        if len(self._passes) >= PASSES or isinstance(loader.dataset, IterableDataset):
            return None
        if loader not in self._loaders:
            self._loaders[loader] = next(self._numbers)
        number = self._loaders[loader]
        sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        sampler = sampler.sampler if type(sampler) is BatchSampler else sampler
        data = loader.dataset
        begun = _Pass(
            calling_line(),
            number,
            id(data),
            _length(data),
            _length(loader) or 0,
            sampler,
            loader.batch_size or 0,
        )
        begun.number = len(self._passes)
        begun.whole, begun.made = self._whole(data), self._made.get(loader)
        self._passes.append(begun)
        return begun

    def _whole(self, data: Any) -> _Whole | None:
        known = self._wholes.get(id(data))
        if known is not None and known[0]() is data:
            return known[1]
        if len(self._wholes) >= _PARTS or (_length(data) or 0) > INDICES:
            return None
        root, part = root_of(data)
        reference, number = self._roots.get(id(root), (None, -1))
        if reference is None or reference() is not root:
            number = next(self._root_numbers)
            self._roots[id(root)] = _reference(root), number
        whole = _Whole(number, _length(root) or 0, part)
        self._wholes[id(data)] = _reference(data), whole
        return whole

    def _on_index(self, original: Any, iterator: Any) -> Any:
        listener = self.watched.listener
        muted = listener.mute()
        try:
            index = original(iterator)
        finally:
            listener.unmute(muted)
        begun = self._beginning or self._open.get(iterator)
        if begun is not None and self._room > 0:
            batch = index if isinstance(index, list | tuple) else [index]
            self._room -= len(batch)
            begun.drawn.append(batch)
        return index

    def _on_next(self, original: Any, iterator: Any) -> Any:
        begun = self._open.get(iterator)
        if begun is None:
            return original(iterator)
        if begun.is_over and not library_here():  # A library may know that it is at its end.
            begun.after_end += 1
        try:
            batch = original(iterator)
        except StopIteration:
            begun.is_over = True
            raise
        begun.taken += 1
        if begun not in self._given:
            self._given.append(begun)
        return batch

    def on_evaluation(self, module: torch.nn.Module, mark: Mark | None) -> None:
        """Note that the last batch was evaluated."""
        del mark
        if self._given:
            self._given[-1].evaluations += 1
            self._given[-1].models.add(self.watched.registry.models.number(module))

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Note that the last batches were used in a backward pass."""
        del mark
        if kind == "forward" and self._given:
            self._given[-1].models.add(int(str(facts["model"])))
        elif kind == "backward" and self._given:
            for each in self._given:
                each.backwards += 1
                each.reaches = str(facts["reaches"])
            self._given.clear()

    @property
    def latest(self) -> int:
        """Number of the pass that has given a batch since the last backward; -1 for none."""
        return self._given[-1].number if self._given else -1

    def freeze(self) -> dict[str, Any]:
        """Return the passes of each line."""
        used: defaultdict[int, set[int]] = defaultdict(set)
        lines: defaultdict[Any, list[_Pass]] = defaultdict(list)
        for each in self._passes:
            used[each.data].update(_numbers(each.indices))
            if each.trains:
                lines[each.mark, each.samples, each.reaches].append(each)
        whole = self._room > 0
        found = [_line(passes, used, whole=whole) for passes in lines.values()]
        ledger = PassLedger(
            tuple(found),
            tuple(_empty(self._passes)),
            _unmatched(self._passes),
            _overlaps(self._passes) if whole else (),
        )
        return {PassLedger.signal: ledger}


def _line(passes: list[_Pass], used: Mapping[int, set[int]], *, whole: bool) -> LoaderPasses:
    first = passes[0]
    orders = [_numbers(each.indices) for each in passes]
    drawn = set[int]().union(*(used[each.data] for each in passes))
    weights = first.sampler.weights if isinstance(first.sampler, WeightedRandomSampler) else ()
    return LoaderPasses(
        passes=len(passes),
        samples=first.samples if whole else None,
        batches=max(each.batches for each in passes),
        taken=tuple(each.taken for each in passes[:64]),
        drawn=len(drawn),
        draws=sum(map(len, orders)),
        same=sum(_begins_alike(orders[0], each) for each in orders) if orders[0] else 0,
        ordered=all(each == sorted(each) for each in orders),
        sampler=type(first.sampler).__name__,
        draws_order=_draws(first.sampler),
        has_epoch=hasattr(first.sampler, "set_epoch"),
        weights=len(weights),
        zeros=len(weights) - int(torch.as_tensor(weights).count_nonzero()),
        generator=getattr(first.sampler, "generator", None) is not None,
        loaders=len({each.loader for each in passes}),
        after_end=sum(each.after_end for each in passes),
        made=site(passes[-1].made),
        made_by=statement(passes[-1].made),
        site=site(first.mark),
    )


def _empty(passes: Sequence[_Pass]) -> Iterator[EmptyLoader]:
    """Yield the loaders that never had a batch, although their samplers have samples."""
    loaders: defaultdict[int, list[_Pass]] = defaultdict(list)
    for each in passes:
        loaders[each.loader].append(each)
    for its in loaders.values():
        first = its[0]
        if any(each.taken or not each.is_over for each in its):
            continue
        length = _length(first.sampler) if first.size else None
        samples = first.samples if length is None else length
        if samples:
            yield EmptyLoader(
                samples,
                first.size,
                len(its),
                site(first.made),
                statement(first.made),
                site(first.mark),
            )


def _unmatched(passes: Sequence[_Pass]) -> tuple[UnmatchedPasses, ...]:
    """Return passes over one loader, one after the other: one calls a model, the other does not."""
    pairs: defaultdict[tuple[Mark | None, Mark | None, Mark | None], int] = defaultdict(int)
    for one, other in pairwise(passes):
        same = one.loader == other.loader and one.taken == other.taken == one.batches > 0
        if not same or one.backwards > 1 or other.backwards > 1:
            continue
        if bool(one.evaluations) == bool(other.evaluations) or one.indices == other.indices:
            continue
        evaluated, bare = (one, other) if one.evaluations else (other, one)
        pairs[evaluated.mark, bare.mark, bare.made] += 1
    return tuple(
        UnmatchedPasses(count, site(evaluated), site(made), statement(made), site(bare))
        for (evaluated, bare, made), count in pairs.items()
    )


def _overlaps(passes: Sequence[_Pass]) -> tuple[Overlap, ...]:
    """Return the evaluations of a model on samples that it trains on."""
    trained: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
    evaluated: defaultdict[tuple[int, int], dict[Any, set[int]]] = defaultdict(dict)
    parts = set[tuple[int, int]]()
    lengths: dict[int, int] = {}
    for each in passes:
        whole = each.whole
        if whole is None or not each.models or not (each.trains or each.evaluations):
            continue
        numbers, part = _numbers(each.indices), whole.part
        samples = {*numbers} if part is None else {int(part[number]) for number in numbers}
        lengths[whole.number] = whole.length
        for model in each.models:
            key = whole.number, model
            if each.trains:
                trained[key] |= samples
            elif key in trained:
                mine = evaluated[key].setdefault((each.mark, each.data), set())
                mine |= samples
            if part is not None or isinstance(each.sampler, SubsetRandomSampler):
                parts.add(key)
    found = []
    for key in parts & evaluated.keys():
        shared = overlap(trained[key], evaluated[key], lengths[key[0]])
        if shared is not None:
            found.append(shared)
    return tuple(found)


def _draws(sampler: Any) -> bool:
    """Return whether a sampler draws a random order for each pass, as its class tells."""
    if isinstance(sampler, SequentialSampler):
        return False
    if not getattr(sampler, "shuffle", True):
        return False
    return isinstance(sampler, _DRAWING) or hasattr(sampler, "set_epoch")


def _begins_alike(first: list[int], other: list[int]) -> bool:
    shorter = min(len(first), len(other))
    return shorter > 0 and first[:shorter] == other[:shorter]


def _numbers(indices: list[Any]) -> list[int]:
    return [int(each) for each in indices if isinstance(each, int | torch.Tensor)]


def _reference(data: Any) -> Any:
    """Return a function that returns the data set while it exists."""
    try:
        return weakref.ref(data)
    except TypeError:  # such as a list, which then stays
        return lambda: data


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except (TypeError, NotImplementedError, AttributeError):
        return None
