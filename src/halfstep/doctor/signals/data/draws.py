"""Random numbers that a training draws again and again, because its generator is set back.

The state of torch's generator before each random call, or the drawn numbers themselves, are noted
as a hash. If the same seed is set several times, and what is drawn after it is the same each time,
the masks of a dropout, the noise or the order of the samples repeat.
"""

from __future__ import annotations

import linecache
import random
import re
from collections import defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from halfstep.doctor.internals import drops_values, is_functorch_tensor
from halfstep.doctor.record.sites import Mark, Site, calling_line, calling_lines, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tensors.nesting import is_in_graph
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

DRAWS = 4096
SEEDINGS = 1024
_FEWEST = 3  # times that a seed is set, or that the same numbers are drawn
_LEADING = 8  # elements that are compared
_SHORTEST = 4  # indices of a batch; fewer are equal by chance
_NUMBERS = frozenset(
    {
        *("rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm"),
        *("normal", "bernoulli", "multinomial", "dropout"),
    }
)
_DISCRETE = frozenset({"randint", "randint_like", "bernoulli", "multinomial"})
MASKS = "the masks of dropout"
_NEW = "np.random.default_rng"  # makes a generator
_BATCHES = 2  # that are compared after each seed
_NEAR = 8  # lines
_PERMUTING = re.compile(r"\b(permutation|permuted|shuffle|sample)\(")


@dataclass(frozen=True, slots=True)
class Repetition:
    """Random numbers of a line that repeat.

    Attributes:
        what: The function that draws them, "the masks of dropout", "indices", or "order" if only
            the batches that follow are known.
        times: How often the same numbers were drawn.
        function: The function that sets the seed; "" if the numbers are from a generator of their
            own.
        seed: The seed, as source code.
        seeded: The line that sets the seed.
        site: The line that draws.
    """

    what: str
    times: int
    function: str
    seed: str
    seeded: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class Seeding:
    """A line that sets the same seed several times, with steps of one training between.

    Attributes:
        function: The function that sets the seed.
        times: How often it was called.
        seed: The seed, as source code.
        site: The line.
    """

    function: str
    times: int
    seed: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class RandomDraws:
    """All of them."""

    signal: ClassVar[str] = "draws"
    seedings: tuple[Seeding, ...] = ()
    repetitions: tuple[Repetition, ...] = ()


@dataclass(slots=True, eq=False)
class _Draw:
    mark: Mark | None
    what: str
    step: int
    key: Any
    owner: Any = None  # of indices: the array from which they are taken
    own: bool = False  # from a generator of its own
    optimizers: int = 0


@dataclass(slots=True, eq=False)
class _Seed:
    mark: Mark | None
    function: str
    seed: str
    step: int
    optimizers: int
    draws: int  # number of draws before it
    called: Mark | None  # the line that calls the function
    batches: list[Any] = field(default_factory=list)  # the first ones of the training after it
    evaluates: bool = False  # before these


class Draws(Signal):
    """Notes seeds, and what a training draws after them."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._draws: list[_Draw] = []
        self._seeds: list[_Seed] = []
        self._is_set_again = False  # after the first step
        self._dropping: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the functions that set a seed."""
        for owner, name, title in (
            (torch, "manual_seed", "torch.manual_seed"),
            (torch.random, "manual_seed", "torch.manual_seed"),
            (np.random, "seed", "np.random.seed"),
            (random, "seed", "random.seed"),
            (np.random, "default_rng", _NEW),
        ):
            yield Hook(owner, name, self.watched.here(self._seeding(title)))

    def _seeding(self, title: str) -> Any:
        def on_seed(original: Any, /, *args: Any, **kwargs: Any) -> Any:
            with self.watched.guard.own():
                seed = args[0] if args else next(iter(kwargs.values()), None)
                # A new generator does not set others back.
                self._is_set_again |= title != _NEW and self.watched.grammar.made > 0
                if seed is not None and len(self._seeds) < SEEDINGS:
                    self._seeds.append(
                        _Seed(
                            _line_with(seed),
                            title,
                            repr(seed),
                            self.watched.grammar.made,
                            self._optimizers(),
                            len(self._draws),
                            calling_line(),
                        )
                    )
            return original(*args, **kwargs)

        return on_seed

    def _optimizers(self) -> int:
        return len(self.watched.registry.optimizers.notes)

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Note the state before a call in training mode whose dropout draws."""
        del facts
        entries = self.watched.tape.entries
        if kind != "forward" or not entries or not self._is_set_again:
            return
        module, random_before = entries[-1].function, entries[-1].random
        if not isinstance(module, nn.Module) or not module.training or random_before is None:
            return
        notes = self.watched.registry.model(module)
        if notes.is_looked_at or module not in self._dropping:
            self._dropping[module] = any(map(drops_values, notes.modules_of(module)))
        if self._dropping[module]:
            self._note(mark, MASKS, _state(random_before))

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note the first batches of the training after a seed was set."""
        del module
        seed = self._seeds[-1] if self._seeds else None
        if seed is None or len(seed.batches) == _BATCHES or not torch.is_grad_enabled():
            return
        key = _leading(given[0]) if given and not is_in_graph(given[0]) else None
        if key is not None and any(each.requires_grad for each in made):
            seed.batches.append(key)

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note a seed of an evaluation."""
        del module, mark
        if self._seeds and not self._seeds[-1].batches:
            self._seeds[-1].evaluates = True

    def on_call(self, heard: Heard) -> None:
        """Note random numbers that the loop draws itself, and indices of samples."""
        name = heard.name
        if not torch.is_grad_enabled():
            return
        if name in _NUMBERS:
            if heard.call.kwargs.get("generator") is not None:
                self._note(calling_line(), name, _leading(heard.result), own=True)
            elif heard.call.random is not None and self._is_set_again:
                self._note(calling_line(), name, _state(heard.call.random))
        elif name == "__getitem__" and self._is_set_again and len(heard.call.args) > 1:
            index = heard.call.args[1]
            index = index[0] if isinstance(index, tuple) and index else index
            key = _leading(index)
            if key is not None and len(key) >= _SHORTEST and list(key) != sorted(key):
                owner = getattr(index, "_base", None)
                owner = getattr(index, "base", None) if owner is None else owner
                self._note(calling_line(), "indices", key, owner=index if owner is None else owner)

    def _note(
        self, mark: Mark | None, what: str, key: Any, *, owner: Any = None, own: bool = False
    ) -> None:
        if key is not None and len(self._draws) < DRAWS:
            step = self.watched.grammar.made
            self._draws.append(_Draw(mark, what, step, key, owner, own, self._optimizers()))

    def freeze(self) -> dict[str, Any]:
        """Return what repeats."""
        lines: defaultdict[Any, list[_Seed]] = defaultdict(list)
        for each in self._seeds:
            lines[each.mark, each.function, each.optimizers].append(each)
        seedings, found = [], []
        for (mark, function, optimizers), seeds in lines.items():
            steps = {each.step for each in seeds}
            if function == _NEW and not self._is_often(len(steps)):
                continue
            if len(steps) < _FEWEST or len({each.seed for each in seeds}) > 1 or not optimizers:
                continue
            if function == _NEW:
                found.append(Repetition(_NEW, len(steps), "", seeds[0].seed, None, site(mark)))
                continue
            seedings.append(Seeding(function, len(steps), seeds[0].seed, site(mark)))
            found += [
                Repetition(what, times, function, seeds[0].seed, site(mark), site(line))
                for line, what, times in self._repeated(seeds)
            ]
        found += [
            Repetition(what, times, "", "", None, site(line))
            for line, what, times in self._repeated_without_seed()
        ]
        found += self._repeated_orders()
        return {RandomDraws.signal: RandomDraws(tuple(seedings), tuple(found))}

    def _repeated_orders(self) -> Iterator[Repetition]:
        """Yield the seeds of permutations after which the same batches follow each time.

        The rows may be taken by numpy.
        """
        lines: defaultdict[Any, list[_Seed]] = defaultdict(list)
        for each in self._seeds:
            lines[each.called, each.function, each.seed, each.optimizers].append(each)
        for (mark, function, seed, optimizers), seeds in lines.items():
            passes = [each.batches for each in seeds if len(each.batches) == _BATCHES]
            if (
                optimizers
                and len(passes) >= _FEWEST
                and len({*passes[0]}) == _BATCHES
                and all(each == passes[0] for each in passes)
                and not any(each.evaluates for each in seeds)
                and _permutes(mark)
            ):
                yield Repetition("order", len(passes), function, seed, site(mark), None)

    def _is_often(self, steps: int) -> bool:
        """Return whether something is made in nearly each step, as the noise of a training is."""
        return steps >= max(2 * _FEWEST, 0.9 * self.watched.grammar.made)

    def _repeated(self, seeds: list[_Seed]) -> Iterator[tuple[Mark | None, str, int]]:
        """Yield the lines whose draws are the same after each seeding, with their numbers."""
        seeds = [each for each in seeds if each.step]  # Draws are noted from the second on.
        ends = [*[each.draws for each in seeds[1:]], len(self._draws)]
        parts: defaultdict[Any, list[list[_Draw]]] = defaultdict(list)
        for seed, end in zip(seeds, ends, strict=True):
            mine: defaultdict[Any, list[_Draw]] = defaultdict(list)
            for each in self._draws[seed.draws : end]:
                if not each.own:
                    mine[each.mark, each.what].append(each)
            for line, draws in mine.items():
                parts[line].append(draws)
        for (mark, what), intervals in parts.items():
            length = min(map(len, intervals))
            keys = [[each.key for each in draws[:length]] for draws in intervals]
            steps = {draws[0].step for draws in intervals}
            owners = {id(draws[0].owner) for draws in intervals if draws[0].owner is not None}
            is_new = what != "indices" or len(owners) == len(intervals)
            if len(steps) >= _FEWEST - 1 and is_new and all(each == keys[0] for each in keys):
                yield mark, what, len(intervals)

    def _repeated_without_seed(self) -> Iterator[tuple[Mark | None, str, int]]:
        """Yield the lines that draw the same numbers each time from a generator of their own.

        Noise is drawn in each step; data are made less often.
        """
        lines: defaultdict[Any, list[_Draw]] = defaultdict(list)
        for each in self._draws:
            if each.own:
                lines[each.mark, each.what, each.optimizers].append(each)
        for (mark, what, _), draws in lines.items():
            steps = len({each.step for each in draws})
            is_often = steps >= _FEWEST if what == "randperm" else self._is_often(steps)
            # Equal whole numbers, such as the zeros of a rare event, are the same by chance.
            tells = what not in _DISCRETE or len({*draws[0].key}) > 1
            if is_often and tells and len({each.key for each in draws}) == 1:
                yield mark, what, len(draws)


def _line_with(seed: Any) -> Mark | None:
    """Return the innermost line of the user that contains the seed itself, not a variable."""
    lines = calling_lines()
    numbers = (each for each in lines if f"({seed!r}" in linecache.getline(each[0], each[1]))
    return next(numbers, calling_line() if not lines else lines[0])


def _permutes(mark: Mark | None) -> bool:
    """Return whether a line, or one of those below it in its function, makes a permutation."""
    for number in range(mark[1], mark[1] + _NEAR) if mark else ():
        text = linecache.getline(mark[0], number) if mark else ""
        if text.lstrip().startswith("def "):
            break
        if _PERMUTING.search(text):
            return True
    return False


def _state(state: Any) -> int:
    """Return a hash of the state of torch's generators."""
    return hash(tuple([each.numpy().tobytes() for each in (state.cpu, *state.cuda)]))


def _leading(value: Any) -> tuple[float, ...] | None:
    """Return the first numbers of a tensor on the CPU, an array or a list; None for others."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.dtype == torch.bool or not value.dim():
            return None
        if value.layout is not torch.strided or is_functorch_tensor(value):
            return None
        return tuple(value.detach().reshape(-1)[:_LEADING].tolist())
    if isinstance(value, np.ndarray):
        return tuple(value.reshape(-1)[:_LEADING].tolist()) if value.dtype.kind in "iu" else None
    if isinstance(value, list) and value and all(isinstance(each, int) for each in value[:8]):
        return tuple(value[:_LEADING])
    return None
