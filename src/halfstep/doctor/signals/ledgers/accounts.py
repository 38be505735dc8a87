"""For contributions.py: the account of one optimizer, and what waits for its step."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import field
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record.contributions import Contributions, Early, Foreign
from halfstep.doctor.record.sites import site
from halfstep.doctor.signals.frozen import frozen
from halfstep.doctor.signals.ledgers.batches import Batches
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from halfstep.doctor.record import Fact
    from halfstep.doctor.record.sites import Mark

SIZES = 64
OPEN = 64


@dataclass(slots=True, eq=False)
class Contribution:
    """One backward pass.

    Attributes:
        mark: Its line.
        terms: The terms of its loss.
        passages: Which optimizers' parameters it passes on its way to those of other ones.
        purpose: Which optimizers it reaches, and whether an input of a model had gradients.
        run: The number of the run of a closure, from 0, in which it was made.
        for_input: Whether the loop has used the gradient that it made for an input.
        users: Numbers of the optimizers whose steps have used it.
        cleared: Numbers of the optimizers whose gradients were cleared since.
    """

    mark: Mark | None
    terms: frozenset[int]
    passages: frozenset[tuple[int, int]]
    purpose: tuple[Fact, bool]
    run: int
    for_input: bool = False
    users: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Account:
    """The contributions to the gradients of one optimizer."""

    backwards: int = 0
    used: int = 0
    twice: int = 0
    lost: int = 0
    waiting: int = 0
    mixed: int = 0
    repeated: int = 0
    stacked: int = 0
    dropped: int = 0
    overwritten: int = 0
    since: int = -1
    stacked_at: Mark | None = None
    windows: Counter[int] = field(default_factory=Counter)
    lines: set[Mark | None] = field(default_factory=set)
    open: deque[Contribution] = field(default_factory=lambda: deque(maxlen=OPEN))
    foreign: dict[tuple[Mark | None, int | None], list[Any]] = field(default_factory=dict)
    joint: Counter[tuple[Mark | None, int, Mark | None]] = field(default_factory=Counter)
    shared: Counter[int] = field(default_factory=Counter)
    batches: Batches = field(default_factory=Batches)
    repeats: bool = False
    kept: bool = False
    overwrites: bool = False
    computed: bool = False
    # Since the last step: what was cleared unused, or examined before; and the lines that did so.
    discarded: list[Contribution] = field(default_factory=list)
    examined: int = 0
    zeros: set[Mark | None] = field(default_factory=set)
    writes: set[Mark | None] = field(default_factory=set)
    ways: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    in_closure: bool = False
    clearings: int = 0
    step: Mark | None = None
    backward: Mark | None = None
    zero: Mark | None = None
    repeated_at: Mark | None = None

    @property
    def usual(self) -> int:
        """The most frequent number of backward passes per step; 0 without a step."""
        return max(self.windows, key=lambda size: self.windows[size], default=0)

    def add(self, contribution: Contribution) -> None:
        """Book a backward."""
        self.backwards += 1
        self.waiting += 1
        self.backward = contribution.mark
        if any(each.run < contribution.run for each in self.open):
            self.stacked += 1
            self.stacked_at = contribution.mark
        if any(each.terms and each.terms <= contribution.terms for each in self.open):
            self.repeats, self.repeated_at = True, contribution.mark
        self.open.append(contribution)
        self.batches.count()

    def use(self, number: int, mark: Mark | None, *, direct: bool) -> None:
        """Book a step of this optimizer that uses what waits.

        Args:
            number: Number of this optimizer.
            mark: The line of the step.
            direct: Whether the gradients are those that backward passes have left, and no closure
                has run them.
        """
        self._note_way(mark, direct=direct)
        self.step = mark
        self.used += self.waiting
        if len(self.windows) < SIZES or self.waiting in self.windows:
            self.windows[self.waiting] += 1
        lines = {each.mark for each in self.open}
        self.mixed += len(lines) > 1
        self.repeated += self.repeats
        self.overwritten += self.overwrites and self.computed
        self.overwrites = self.computed = False
        self._note_foreign(number)
        self._note_joint(number)
        self.lines |= lines
        for each in self.open:
            each.users.add(number)
        self.batches.use()

    def _note_way(self, mark: Mark | None, *, direct: bool) -> None:
        """Note how many passes, like the only one in use, the only clearing line has cleared."""
        passes = 0
        if len(self.open) == 1 and not self.examined and len(self.zeros) == 1:
            used = self.open[0]
            passes = sum(
                each.mark == used.mark and each.purpose == used.purpose for each in self.discarded
            )
        zero = self.zero if passes else None  # the line of other clearings is of no interest
        key = passes, zero, mark, frozenset(self.writes)
        if direct and (key in self.ways or len(self.ways) < SIZES):
            self.ways[key] += 1
        self.discarded, self.examined = [], 0
        self.writes.clear()
        self.zeros.clear()

    def _early(self) -> tuple[int, tuple[Early, ...]]:
        """Return `direct` and `early` of the ledger."""
        direct, early = 0, []
        for (passes, zero, step, writes), count in self.ways.most_common():
            if all((line := site(mark)) is not None and "clip" in line.text for mark in writes):
                direct += count
                early += [Early(count, passes, site(zero), site(step))] if passes else []
        return direct, tuple(early)

    def _note_foreign(self, number: int) -> None:
        """Note contributions for something else, before those for this optimizer itself."""
        own = [not (each.users or each.for_input) for each in self.open]
        if all(own) or not any(own):
            return
        last = len(own) - 1 - own[::-1].index(True)
        counts: Counter[tuple[Mark | None, int | None]] = Counter()
        for each in [*self.open][:last]:
            if each.for_input:
                counts[each.mark, None] += 1
            counts.update(
                (each.mark, user) for user in each.users if (number, user) in each.passages
            )
        first = self.open[own.index(True)].mark
        for key, count in counts.items():
            noted = self.foreign.setdefault(key, [0, 0, first])
            noted[0] += 1
            noted[1] += count

    def _note_joint(self, number: int) -> None:
        """Note passes on the way to another optimizer, beside those for this one alone."""
        own = next((each for each in self.open if each.purpose[0] == str(number)), None)
        users = {(each.mark, to) for each in self.open for at, to in each.passages if at == number}
        if own is not None:
            self.joint.update((mark, user, own.mark) for mark, user in users)

    def clear(self, mark: Mark | None, *, examined: bool) -> None:
        """Book a clearing."""
        self.zero = mark
        self.zeros.add(mark)
        if examined:
            self.examined += len(self.open)
        elif len(self.discarded) < OPEN:
            self.discarded += [each for each in self.open if not each.users]
        if self.in_closure:
            self.used += self.waiting
        else:
            self.lost += self.waiting
            self.overwrites |= self.kept and bool(self.waiting) and not examined
            if 0 < self.waiting < self.usual and not (examined or self.mixed):
                self.dropped += 1
                self.batches.drop()
        self.kept = False
        self.close()

    def close(self) -> None:
        """Begin a new window."""
        self.waiting = 0
        self.repeats = False
        self.open.clear()
        self.batches.close()

    def frozen(self, number: int, *, finite: bool) -> Contributions:
        """Return the account as plain data."""
        direct, early = self._early()
        return frozen(
            Contributions,
            self,
            number=number,
            same_line=bool(self.open) and {each.mark for each in self.open} <= self.lines,
            finite=finite,
            foreign=tuple(
                Foreign(steps, passes, user, site(mark), site(before))
                for (mark, user), (steps, passes, before) in self.foreign.items()
            ),
            joint=tuple(
                Foreign(steps, steps, user, site(mark), site(own))
                for (mark, user, own), steps in self.joint.items()
            ),
            unseen=self.batches.unseen(),
            direct=direct,
            early=early,
        )
