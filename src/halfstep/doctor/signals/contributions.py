"""The ledger of gradients: what became of the contribution of each backward.

A contribution comes from the terms of one loss. It ends in one step, or is lost when the loop
clears the gradients, or waits. A step that a scaler skips uses its contributions. The ledger shows
where this is not so: a step uses a contribution that was made for something else, a step counts a
loss several times, two steps use the same contribution, or batches never get into a step. Nothing
is read from a device before the program's end.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.batches import Batches
from halfstep.doctor.signals.facts import gradients_of
from halfstep.doctor.signals.gradients import memories, memory
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.graph import passages, terms_of
from halfstep.doctor.tensors.summary import is_finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

SIZES = 64
OPEN = 64


@dataclass(frozen=True, slots=True)
class Foreign:
    """Contributions that were made for something else, and that the steps of an optimizer used.

    Attributes:
        steps: Number of these steps.
        passes: Number of these contributions.
        user: Number of the optimizer whose steps they were made for; None for contributions that
            were made for the gradients of an input.
        site: The line of their backward.
        before: The line of the first backward of a step that was made for the optimizer itself.
    """

    steps: int
    passes: int
    user: int | None
    site: Site | None
    before: Site | None


@dataclass(frozen=True, slots=True)
class Contributions:
    """The contributions of the backward passes to the gradients of one optimizer.

    Attributes:
        number: Number of the optimizer.
        backwards: Number of backward passes that reached its gradients.
        used: Number of them whose contribution ended in a step.
        twice: Number of steps that used gradients of an earlier step again.
        lost: Number of backward passes whose contribution was cleared before any use.
        windows: Number of steps by the number of backward passes since the step before.
        mixed: Number of steps that used the backward passes of several lines.
        waiting: Number of backward passes since the last step or the last clearing.
        same_line: Whether these come from a line whose backward passes ended in steps before.
        finite: Whether the gradients at the end of the program are finite.
        since: The iteration of the last step.
        step: The line of the last step.
        backward: The line of the last backward.
        zero: The line that cleared the gradients last.
        foreign: Contributions that were made for something else.
        repeated: Number of steps that counted a loss several times.
        repeated_at: The line of a backward that counted a loss again.
        stacked: Number of backward passes in a closure that added to those of the closure's earlier
            runs in the same step.
        stacked_at: The line of such a backward.
        shared: Number of steps that used the contributions that a step of another optimizer had
            used for the same parameters, by the number of that optimizer.
        overwritten: Number of steps with gradients that the loop computed, after it had zeroed in
            place gradients that it had kept and not used.
        dropped: Number of incomplete windows that were cleared.
        unseen: Number of backward passes in these windows, if their batches were always the same
            ones, and no step used them.
    """

    number: int
    backwards: int = 0
    used: int = 0
    twice: int = 0
    lost: int = 0
    windows: dict[int, int] = field(default_factory=dict)
    mixed: int = 0
    waiting: int = 0
    same_line: bool = False
    finite: bool = True
    since: int = -1
    step: Site | None = None
    backward: Site | None = None
    zero: Site | None = None
    foreign: tuple[Foreign, ...] = ()
    repeated: int = 0
    repeated_at: Site | None = None
    stacked: int = 0
    stacked_at: Site | None = None
    shared: dict[int, int] = field(default_factory=dict)
    overwritten: int = 0
    dropped: int = 0
    unseen: int = 0

    @property
    def usual(self) -> int:
        """The most frequent number of backward passes per step; 0 without a step."""
        return max(self.windows, key=lambda size: self.windows[size], default=0)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return sum(self.windows.values())


@dataclass(frozen=True, slots=True)
class GradientLedger:
    """The ledger, for each optimizer whose gradients a backward has reached."""

    signal: ClassVar[str] = "contributions"
    optimizers: tuple[Contributions, ...] = ()


@dataclass(slots=True, eq=False)
class _Contribution:
    """One backward pass.

    Attributes:
        mark: Its line.
        terms: The terms of its loss.
        passages: Which optimizers' parameters it passes on its way to those of other ones.
        run: The number of the run of a closure, from 0, in which it was made.
        for_input: Whether the loop has used the gradient that it made for an input.
        users: Numbers of the optimizers whose steps have used it.
        cleared: Numbers of the optimizers whose gradients were cleared since.
    """

    mark: Mark | None
    terms: frozenset[int]
    passages: frozenset[tuple[int, int]]
    run: int
    for_input: bool = False
    users: set[int] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Account:
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
    again: Mark | None = None
    windows: Counter[int] = field(default_factory=Counter)
    lines: set[Mark | None] = field(default_factory=set)
    open: deque[_Contribution] = field(default_factory=lambda: deque(maxlen=OPEN))
    foreign: dict[tuple[Mark | None, int | None], list[Any]] = field(default_factory=dict)
    shared: Counter[int] = field(default_factory=Counter)
    batches: Batches = field(default_factory=Batches)
    repeats: bool = False
    kept: bool = False
    overwrites: bool = False
    computed: bool = False
    in_closure: bool = False
    clearings: int = 0
    step: Mark | None = None
    backward: Mark | None = None
    zero: Mark | None = None
    repeated_at: Mark | None = None

    @property
    def usual(self) -> int:
        return max(self.windows, key=lambda size: self.windows[size], default=0)

    def add(self, contribution: _Contribution) -> None:
        """Book a backward."""
        self.backwards += 1
        self.waiting += 1
        self.backward = contribution.mark
        if any(each.run < contribution.run for each in self.open):
            self.stacked += 1
            self.again = contribution.mark
        if any(each.terms and each.terms <= contribution.terms for each in self.open):
            self.repeats, self.repeated_at = True, contribution.mark
        self.open.append(contribution)

    def use(self, number: int) -> None:
        """Book a step of this optimizer that uses what waits."""
        self.used += self.waiting
        if len(self.windows) < SIZES or self.waiting in self.windows:
            self.windows[self.waiting] += 1
        lines = {each.mark for each in self.open}
        self.mixed += len(lines) > 1
        self.repeated += self.repeats
        self.overwritten += self.overwrites and self.computed
        self.overwrites = self.computed = False
        self._note_foreign(number)
        self.lines |= lines
        for each in self.open:
            each.users.add(number)
        self.batches.use()

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

    def clear(self, mark: Mark | None, *, examined: bool) -> None:
        """Book a clearing."""
        self.zero = mark
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
        return Contributions(
            number=number,
            backwards=self.backwards,
            used=self.used,
            twice=self.twice,
            lost=self.lost,
            windows=dict(self.windows),
            mixed=self.mixed,
            waiting=self.waiting,
            same_line=bool(self.open) and {each.mark for each in self.open} <= self.lines,
            finite=finite,
            since=self.since,
            step=site(self.step),
            backward=site(self.backward),
            zero=site(self.zero),
            foreign=tuple(
                Foreign(steps, passes, user, site(mark), site(before))
                for (mark, user), (steps, passes, before) in self.foreign.items()
            ),
            repeated=self.repeated,
            repeated_at=site(self.repeated_at),
            stacked=self.stacked,
            stacked_at=site(self.again),
            shared=dict(self.shared),
            overwritten=self.overwritten,
            dropped=self.dropped,
            unseen=self.batches.unseen(),
        )


class Accounting(Signal):
    """Books each backward, each step and each clearing."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._accounts: dict[int, _Account] = {}
        self._losses: list[torch.Tensor] = []
        self._passages: dict[tuple[Mark | None, Fact], frozenset[tuple[int, int]]] = {}
        self._last: _Contribution | None = None
        self._read: int | None = None  # the address of an input's gradient
        self._run = 0
        self._stepping: list[int] = []

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Remember the losses until the gradients that they reach are known."""
        self._losses = [*losses]

    def on_closure(self, optimizer: Optimizer, run: int) -> None:
        """Book what a closure computes in the step that runs it."""
        self._run = run
        number = self.watched.registry.optimizers.number(optimizer)
        self._accounts.setdefault(number, _Account()).in_closure = run > 0

    def on_gradient(self, tensor: torch.Tensor) -> None:
        """Remember the gradient of an input that the loop reads, possibly only to zero it."""
        if tensor.is_leaf and tensor.grad is not None and not self._owners(tensor):
            self._read = memory(tensor.grad)

    def on_call(self, heard: Heard) -> None:
        """Note that the last backward was for the gradient of an input, if the loop uses that."""
        if self._read is None or self._last is None or heard.name == "zero_":
            return
        if self._read in memories(heard.given):
            self._last.for_input, self._read = True, None

    def on_kept(self, parameters: Sequence[torch.Tensor]) -> None:
        """Note the optimizers whose gradients the loop has kept and is about to zero."""
        for number in {each for one in parameters for each in self._owners(one)}:
            self._accounts.setdefault(number, _Account()).kept = True

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Take a sample of a batch, if a window was dropped before."""
        del module, made
        for account in self._accounts.values():
            if account.dropped:
                account.batches.take(given)

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Book an action of the loop."""
        if kind == "backward":
            self._backward(mark, facts["reaches"])
        elif kind == "zero":
            number = int(str(facts["optimizer"]))
            for account in self._accounts.values():
                for each in account.open:
                    each.cleared.add(number)
            account = self._accounts.setdefault(number, _Account())
            account.clear(mark, examined=bool(facts["examined"]))
        elif kind == "write":
            number = int(str(facts["optimizer"]))
            self._accounts.setdefault(number, _Account()).computed = True
        elif kind == "step" or (kind == "scaler step" and facts["skipped"]):
            number = int(str(facts["optimizer"]))
            account = self._accounts.setdefault(number, _Account())
            account.twice += bool(facts["stale"])
            account.computed |= bool(facts["assigned"])
            if kind == "step":
                if not self._stepping:  # no step of an optimizer that contains this one
                    self._note_shared(account, number)
                self._stepping.append(number)
            account.use(number)
            account.step, account.since = mark, self.watched.grammar.iteration
            account.waiting = 0
            if not facts.get("closure"):
                account.close()

    def after_step(self, optimizer: Optimizer) -> None:
        """Book what the runs of a closure after the first one have made."""
        number = self.watched.registry.optimizers.number(optimizer)
        account = self._accounts.get(number)
        self._run = 0
        self._stepping = self._stepping[:-1]
        if account is not None and account.in_closure:
            account.used += account.waiting
            account.in_closure = False
            account.close()

    def _backward(self, mark: Mark | None, reaches: Fact) -> None:
        losses, self._losses = self._losses, []
        self._read = None
        self._stepping.clear()
        numbers = [int(number) for number in str(reaches).split(",") if number]
        key = mark, reaches
        if len(numbers) > 1 and key not in self._passages and len(self._passages) < SIZES:
            self._passages[key] = passages(losses, self._owners)
        self._last = _Contribution(
            mark, terms_of(losses), self._passages.get(key, frozenset()), self._run
        )
        alive = self.watched.registry.optimizers.alive() if numbers else {}
        for number in numbers:
            account = self._accounts.setdefault(number, _Account())
            clearings = self.watched.grammar.state(alive[number]).clearings
            if account.clearings != clearings and account.open:  # An engine has cleared them.
                account.clear(account.zero, examined=True)
            account.clearings = clearings
            account.add(self._last)

    def _note_shared(self, account: _Account, number: int) -> None:
        """Note whether a step uses what a step of another optimizer has used."""
        users = {
            user for each in account.open for user in each.users - each.cleared if user != number
        }
        if not users:
            return
        alive = self.watched.registry.optimizers.alive()
        parameters = {
            user: self.watched.grammar.state(alive[user]).parameters
            for user in {*users, number}
            if user in alive
        }
        for user in users & parameters.keys():
            account.shared[user] += not parameters[user].isdisjoint(parameters.get(number, ()))

    def _owners(self, tensor: torch.Tensor) -> frozenset[int]:
        """Return the numbers of the optimizers of a parameter."""
        return frozenset(
            number
            for number, optimizer in self.watched.registry.optimizers.alive().items()
            if id(tensor) in self.watched.grammar.state(optimizer).parameters
        )

    def freeze(self) -> dict[str, Any]:
        """Return the ledger; reads the gradients that wait for a step."""
        alive = self.watched.registry.optimizers.alive()
        made = []
        for number, account in sorted(self._accounts.items()):
            optimizer = alive.get(number)
            waits = account.waiting and optimizer is not None
            waiting = gradients_of(optimizer) if waits and optimizer is not None else []
            made.append(account.frozen(number, finite=all(map(is_finite, waiting))))
        return {GradientLedger.signal: GradientLedger(tuple(made))}
