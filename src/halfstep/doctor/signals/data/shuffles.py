"""Samples and labels that a program shuffles one after the other, each in an order of its own."""

from __future__ import annotations

import random
from collections.abc import MutableSequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.watched import Watched

CALLS = 256
_SHORTEST = 16
_LINES = 3  # between the two calls


@dataclass(frozen=True, slots=True)
class ShuffledApart:
    """Samples and their labels that are shuffled in two orders.

    Attributes:
        function: The function that shuffles.
        length: Number of samples.
        other: The line that shuffles the other of the two.
        site: The line that shuffles the second one.
    """

    function: str
    length: int
    other: Site | None
    site: Site | None


@dataclass(frozen=True, slots=True)
class Shuffles:
    """All such pairs."""

    signal: ClassVar[str] = "shuffles"
    found: tuple[ShuffledApart, ...] = ()


@dataclass(slots=True, eq=False)
class _Call:
    function: str
    mark: Mark | None
    length: int
    is_label: bool
    state: Any


class Shuffling(Signal):
    """Notes what is shuffled, and the state of the generator before."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._calls: list[_Call] = []

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the functions that shuffle."""
        for owner, name, title in (
            (random, "shuffle", "random.shuffle"),
            (np.random, "shuffle", "np.random.shuffle"),
            (np.random, "permutation", "np.random.permutation"),
        ):
            yield Hook(owner, name, self.watched.in_loop(self._shuffling(title)))

    def _shuffling(self, title: str) -> Any:
        def on_shuffle(original: Any, /, *args: Any, **kwargs: Any) -> Any:
            with self.watched.guard.own():
                if args and len(self._calls) < CALLS:
                    self._note(title, args[0])
            return original(*args, **kwargs)

        return on_shuffle

    def _note(self, title: str, given: Any) -> None:
        is_label = _is_label(given)
        if is_label is None or len(given) < _SHORTEST:
            return
        is_python = title.startswith("random")
        state: Any = (
            hash(random.getstate()) if is_python else hash(str(np.random.get_state()))  # noqa: NPY002  # programs draw from it
        )
        self._calls.append(_Call(title, calling_line(), len(given), is_label, state))

    def freeze(self) -> dict[str, Any]:
        """Return the pairs."""
        found = {
            (one.mark, other.mark): ShuffledApart(
                other.function, other.length, site(one.mark), site(other.mark)
            )
            for one, other in pairwise(self._calls)
            if one.length == other.length
            and one.is_label != other.is_label
            and one.state != other.state
            and _are_near(one.mark, other.mark)
        }
        return {Shuffles.signal: Shuffles(tuple(found.values()))}


def _are_near(one: Mark | None, other: Mark | None) -> bool:
    if one is None or other is None or one == other:
        return False
    return (one[0], one[2]) == (other[0], other[2]) and abs(one[1] - other[1]) <= _LINES


def _is_label(given: Any) -> bool | None:
    """Return whether a sequence has one number for each sample; None for indices and others."""
    if isinstance(given, np.ndarray):
        if given.ndim != 1:
            return False if given.ndim else None
        return True if given.dtype.kind == "f" else _repeats(given.tolist())
    if not isinstance(given, MutableSequence) or not given:
        return None
    if all(isinstance(each, int) for each in given):
        return _repeats(given)
    return all(isinstance(each, float) for each in given)


def _repeats(numbers: Any) -> bool | None:
    """Return whether numbers are those of classes; None if they may be indices."""
    return True if 2 * len({*numbers}) <= len(numbers) else None
