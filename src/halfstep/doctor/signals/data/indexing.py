"""Which rows of its tensors a loop takes itself: `inputs[batch]`, `targets[start : start + 32]`.

Rows that are given to a model are followed back to the tensor from which they were taken, also
through a permutation of the whole tensor. So rows that are never taken are known, and inputs and
targets that are taken with different indices.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch.utils.data import TensorDataset

from halfstep.doctor.internals import is_loss, version_of
from halfstep.doctor.record.passes import Overlap  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.data.overlap import mixed
from halfstep.doctor.signals.data.taken import Taken, count_of, is_mixed, numbers_of
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tensors.makers import Makers, compared
from halfstep.doctor.tensors.nesting import is_in_graph
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

TAKES = 2048
INDICES = 250_000
RECENT = 64
_SHORTEST = 4  # rows of a batch
_EPOCHS = 3
_LONGEST = 16  # an order; shorter ones may be the same by chance
_LOSSES = frozenset(
    {
        *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits"),
    }
)
_NO_MODEL = -1
_LOOKED, _EMPTY = 512, 0.25  # rows that were never taken, and the share that may be empty


@dataclass(frozen=True, slots=True)
class TakenRows:
    """The rows of a tensor that a loop gives to a model.

    Attributes:
        rows: Number of rows of the tensor.
        taken: Number of different rows that were taken, in training and evaluation.
        takes: Number of rows that were taken for the training, with repetitions.
        steps: Number of steps before which they were taken.
        batches: Number of different batches among them.
        site: The line that takes them.
    """

    rows: int
    taken: int
    takes: int
    steps: int
    batches: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class TwoOrders:
    """Inputs and targets that are taken with different indices.

    Attributes:
        batches: Number of such batches; 0 for a data set that pairs them as a whole.
        rows: Number of rows of both tensors.
        alike: Share of the rows of these batches with the same index.
        inputs: The line that takes the inputs.
        site: The line that takes the targets.
    """

    batches: int
    rows: int
    alike: float
    inputs: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class SameOrder:
    """Indices that a loop draws anew, and that are the same each time.

    Attributes:
        times: How often.
        rows: Number of rows of the tensor.
        site: The line that takes the rows.
    """

    times: int
    rows: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class RowLedger:
    """All such tensors."""

    signal: ClassVar[str] = "indexing"
    sources: tuple[TakenRows, ...] = ()
    orders: tuple[TwoOrders, ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    same: tuple[SameOrder, ...] = ()


class Indexing(Signal):
    """Follows the rows that the loop takes."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._results: OrderedDict[int, tuple[Any, Taken]] = OrderedDict()
        self._kept: dict[int, tuple[Any, Taken]] = {}  # permuted as a whole
        self._sources: dict[int, tuple[Any, int]] = {}
        self._versions: dict[int, set[int]] = defaultdict(set)  # of the sources
        self._born: dict[int, tuple[Any, int]] = {}
        self._arrays: OrderedDict[int, tuple[Any, Any]] = (
            OrderedDict()
        )  # of tensors in their memory
        self._births: list[int | None] = []  # of the sources
        # Rows that a model is given, whether for training, and the number of the model.
        self._given: list[tuple[Taken, bool, int]] = []
        self._pairs: list[tuple[Taken, Taken]] = []
        self._sets: list[tuple[Taken, Taken]] = []
        self._inputs = Makers[Taken | None]()
        self._whole: set[int] = set()  # tensors that are given to a model as they are
        self._room = INDICES
        self._takes = 0
        self._heard = 0

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of what makes a tensor in the memory of an array, and a data set."""
        yield Hook(torch, "from_numpy", self.watched.here(self._on_array))
        yield Hook(TensorDataset, "__init__", self.watched.afterwards(self._on_set))

    def _on_set(self, data: TensorDataset, *tensors: torch.Tensor) -> None:
        del data
        with self.watched.guard.own():
            # Targets have fewer dimensions; the samples of two domains may be unpaired on purpose.
            if len(self._sets) < RECENT and tensors and tensors[-1].dim() < tensors[0].dim():
                inputs, targets = self._of(tensors[0]), self._of(tensors[-1])
                if inputs is not None and targets is not None:
                    self._sets.append((inputs, targets))

    def _on_array(self, original: Any, array: Any, /) -> Any:
        tensor = original(array)
        with self.watched.guard.own():
            if count_of(array, 0):
                self._arrays[id(tensor)] = _weak(tensor), array
                if len(self._arrays) > RECENT:
                    self._arrays.popitem(last=False)
        return tensor

    def on_call(self, heard: Heard) -> None:
        """Note rows that are taken, and the targets of a loss."""
        self._heard += 1
        result = heard.result
        if heard.name == "__getitem__":
            self._take(heard)
        elif (
            type(result) is torch.Tensor
            and self.watched.grammar.made == 0
            and len(self._born) < TAKES
        ):
            self._born[id(result)] = _weak(result), self._heard
        if heard.name in _LOSSES or heard.module is not None:
            prediction, target = compared(heard.call.args, heard.call.kwargs)
            mine = self._inputs.take(prediction)
            taken = self._of(target) if isinstance(target, torch.Tensor) else None
            if mine is not None and taken is not None and len(self._pairs) < TAKES:
                self._pairs.append((mine, taken))

    def _take(self, heard: Heard) -> None:
        args, result = heard.call.args, heard.result
        source = args[0] if args else None
        if type(source) is not torch.Tensor or type(result) is not torch.Tensor:
            return
        if not source.dim() or source.requires_grad or len(args) < 2:
            return
        index = args[1][0] if isinstance(args[1], tuple) and args[1] else args[1]
        count = count_of(index, len(source))
        if count < _SHORTEST or count != (len(result) if result.dim() else 0):
            return
        if self._room < count or self._takes >= TAKES:
            return
        self._takes += 1
        is_slice = isinstance(index, slice)
        known = self._arrays.get(id(index))
        whole = known[1] if known is not None and known[0]() is index else index
        base = getattr(whole, "_base", getattr(whole, "base", None))
        owner = None if is_slice else whole if base is None else base
        self._room -= 0 if is_slice else count
        taken = Taken(
            self._number(source),
            len(source),
            index,
            calling_line(),
            self.watched.grammar.made,
            version_of(index) if isinstance(index, torch.Tensor) else 0,
            self._heard,
            self._birth(owner) if isinstance(owner, torch.Tensor) else None,
            owner,
            self._of(source),
        )
        entry = (_weak(result), taken)
        is_early = self.watched.grammar.made == 0
        if (count == len(source) or is_early) and len(self._kept) < RECENT:
            self._kept[id(result)] = entry
        self._results[id(result)] = entry
        while len(self._results) > RECENT:
            self._results.popitem(last=False)

    def are_of_one_order(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        """Return whether two tensors are rows that the loop has taken with the same indices."""
        taken = self._of(one), self._of(other)
        if taken[0] is None or taken[1] is None or taken[0].rows != taken[1].rows:
            return False
        if not (taken[0].is_known() and taken[1].is_known()):
            return False
        return bool(np.array_equal(taken[0].numbers(), taken[1].numbers()))

    def _of(self, tensor: torch.Tensor) -> Taken | None:
        """Return what is known of a tensor that consists of taken rows."""
        for known in (self._results, self._kept):
            entry = known.get(id(tensor))
            if entry is not None and entry[0]() is tensor:
                return entry[1]
        return None

    def _number(self, source: torch.Tensor) -> int:
        known = self._sources.get(id(source))
        if known is None or known[0]() is not source:
            known = self._sources[id(source)] = _weak(source), len(self._births)
            self._births.append(self._birth(source))
        self._versions[known[1]].add(version_of(source))
        return known[1]

    def _birth(self, tensor: torch.Tensor) -> int | None:
        """Return the number of the call that has made a tensor before the first step."""
        known = self._born.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note the rows that a model is given."""
        first = next((each for each in given if each.dim()), None)
        if first is None or is_loss(module) or is_in_graph(first):
            return
        is_training = torch.is_grad_enabled() and any(each.requires_grad for each in made)
        taken = self._of(first)
        if taken is None:
            known = self._sources.get(id(first))
            if known is not None and known[0]() is first:
                self._whole.add(known[1])
        elif len(self._given) < TAKES:
            # A frozen part in a training is no evaluation.
            is_known = is_training or not (torch.is_grad_enabled() and module.training)
            number = self.watched.registry.models.number(module) if is_known else _NO_MODEL
            self._given.append((taken, is_training, number))
        if is_training:
            self._inputs.add(taken, made)
        else:
            self._inputs.clear()

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Forget the calls of models, whose graph is gone."""
        del losses
        self._inputs.clear()

    def freeze(self) -> dict[str, Any]:
        """Return the rows that are never taken, and inputs and targets of different indices."""
        return {
            RowLedger.signal: RowLedger(
                tuple(self._few()),
                tuple(self._orders()),
                tuple(self._overlaps()),
                tuple(self._same()),
            )
        }

    def _few(self) -> list[TakenRows]:
        used: defaultdict[int, set[int]] = defaultdict(set)
        lines: defaultdict[int, list[Taken]] = defaultdict(list)
        for taken, is_training, _ in self._given:
            if taken.is_known():
                used[taken.source].update(numbers_of(taken.index, taken.rows).tolist())
                if is_training:
                    lines[taken.source].append(taken)
        return [
            TakenRows(
                rows=self._filled(source, mine[0].rows, used[source]),
                taken=len(used[source]),
                takes=sum(count_of(each.index, each.rows) for each in mine),
                steps=len({each.step for each in mine}),
                batches=len({numbers_of(each.index, each.rows).tobytes() for each in mine}),
                site=site(mine[-1].mark),
            )
            for source, mine in lines.items()
            if source not in self._whole and 2 * len(used[source]) <= mine[0].rows
        ]

    def _filled(self, source: int, rows: int, used: set[int]) -> int:
        """Return how many rows a tensor has, without those of a buffer that nothing has filled."""
        known = (each() for each, number in self._sources.values() if number == source)
        tensor = next(known, None)
        if tensor is None:
            return rows if len(self._versions[source]) == 1 else len(used)
        left = np.setdiff1d(np.arange(len(tensor)), [*used])
        looked = left[:: -max(1, len(left) // _LOOKED)].copy()  # A buffer fills up from its start.
        values = tensor[torch.from_numpy(looked)].reshape(len(looked), -1)
        share = float((values == values[:1]).all(1).double().mean())
        return rows - int(share * len(left)) if share > _EMPTY else rows

    def _orders(self) -> list[TwoOrders]:
        lines: defaultdict[Any, list[tuple[Taken, Taken]]] = defaultdict(list)
        for is_set, those in enumerate((self._pairs, self._sets)):
            for inputs, targets in those:
                roots = inputs.root(), targets.root()
                if roots[0][0] != roots[1][0] and roots[0][1] == roots[1][1]:
                    lines[inputs.mark, targets.mark, is_set].append((inputs, targets))
        found = []
        for (mark, other, is_set), pairs in lines.items():
            known = [(a, b) for a, b in pairs if a.is_known() and b.is_known()]
            if not all(self._is_older(b, a) and self._is_older(a, b) for a, b in known):
                continue  # Targets that are computed from permuted inputs have their order.
            if any(b.is_mixed() and not a.is_mixed() for a, b in known):
                continue  # Targets without meaning are drawn to see what a model can memorise.
            numbers = [(a.numbers(), b.numbers()) for a, b in known]
            numbers = [(a, b) for a, b in numbers if len(a) == len(b)]
            if not numbers or not any(is_mixed(a) or is_mixed(b) for a, b in numbers):
                continue  # Slices that are shifted are meant, as in forecasts.
            alike = float(np.mean(np.concatenate([a == b for a, b in numbers])))
            apart = [not (a == b).all() for a, b in numbers]
            if all(apart):
                rows = known[0][0].root()[1]
                count = 0 if is_set else len(numbers)
                found.append(TwoOrders(count, rows, alike, site(mark), site(other)))
        return found

    def _same(self) -> Iterator[SameOrder]:
        """Yield orders of which each epoch has an array of its own, with the same indices."""
        lines: defaultdict[Any, dict[int, Any]] = defaultdict(dict)
        for taken, is_training, _ in self._given:
            # An order of torch is known by its draw, and others are those of a sort.
            if is_training and isinstance(taken.owner, np.ndarray):
                lines[taken.mark, taken.source, taken.rows][id(taken.owner)] = taken.owner
        for (mark, _, rows), owners in lines.items():
            orders = [numbers_of(each, rows) for each in owners.values() if count_of(each, rows)]
            first = orders[0] if orders else np.arange(1)
            alike = all(np.array_equal(first, each) for each in orders)
            if len(orders) >= _EPOCHS and len(first) >= _LONGEST and is_mixed(first) and alike:
                yield SameOrder(len(orders), rows, site(mark))

    def _overlaps(self) -> Iterator[Overlap]:
        """Yield the evaluations of a model on rows that it trains on."""
        trained: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        calls: defaultdict[tuple[int, int], list[tuple[Mark | None, list[int]]]] = defaultdict(list)
        known = [each for each in self._given if each[0].is_known()]
        # What a step learns from is given to a teacher in it, too.
        learned = {taken.of_step() for taken, is_training, _ in known if is_training}
        teaching = {
            each.mark for each, learns, _ in known if not learns and each.of_step() in learned
        }
        for taken, is_training, model in known:
            key = taken.root()[0], model
            if is_training:
                trained[key].update(taken.numbers().tolist())
            elif taken.mark in teaching:
                continue
            elif key in trained and count_of(taken.index, taken.rows) < taken.root()[1]:
                calls[key].append((taken.mark, taken.numbers().tolist()))
        for key, mine in calls.items():
            shared = mixed(trained[key], mine)
            if shared is not None:
                yield shared

    def _is_older(self, one: Taken, other: Taken) -> bool:
        """Return whether a tensor was made before the order in which another one is taken."""
        birth = self._births[one.root()[0]]
        part: Taken | None = other
        while part is not None:
            if part.owner is not None:
                made = part.drawn if part.drawn is not None or part.step else part.at
                if birth is None or (made is not None and birth > made):
                    return False
            part = part.of
        return True


def _weak(tensor: torch.Tensor) -> weakref.ref[torch.Tensor]:
    return weakref.ref(tensor)
