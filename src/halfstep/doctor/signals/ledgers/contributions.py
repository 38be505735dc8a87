"""The ledger of gradients: what became of the contribution of each backward.

A contribution comes from the terms of one loss. It ends in one step, or is lost when the loop
clears the gradients, or waits. A step that a scaler skips uses its contributions. The ledger shows
where this is not so: a step uses a contribution that was made for something else, a step counts a
loss several times, two steps use the same contribution, or batches never get into a step. Nothing
is read from a device before the program's end.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record.contributions import GradientLedger
from halfstep.doctor.signals.ledgers.accounts import SIZES, Account, Contribution
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import gradients_of
from halfstep.doctor.signals.state.gradients import memories, memory
from halfstep.doctor.tensors.graph import passages, terms_of
from halfstep.doctor.tensors.summary import is_finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.record import Fact
    from halfstep.doctor.record.sites import Mark
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_TWICE = 2


class Accounting(Signal):
    """Books each backward, each step and each clearing."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._accounts: defaultdict[int, Account] = defaultdict(Account)
        self._losses: list[torch.Tensor] = []
        self._passages: dict[tuple[Mark | None, Fact], frozenset[tuple[int, int]]] = {}
        self._last: Contribution | None = None
        self._read: int | None = None  # the address of an input's gradient
        self._run = 0
        self._differentiable = False  # whether an input of a model had gradients
        self._stepping: list[int] = []

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Remember the losses until the gradients that they reach are known."""
        self._losses = [*losses]

    def on_closure(self, optimizer: Optimizer, run: int) -> None:
        """Book what a closure computes in the step that runs it."""
        self._run = run
        number = self.watched.registry.optimizers.number(optimizer)
        self._account(number).in_closure = run > 0

    def on_gradient(self, tensor: torch.Tensor) -> None:
        """Remember the gradient of an input that the loop reads, possibly only to zero it."""
        if tensor.is_leaf and tensor.grad is not None and not self._owners(tensor):
            self._read = memory(tensor.grad)

    def on_call(self, heard: Heard) -> None:
        """Note whose gradients a call uses: an input's, or those that lie where kept ones were."""
        for number, account in self._accounts.items():
            if account.overwrites and not account.computed:
                account.computed = self._is_doubled(number, heard.given)
        if self._read is None or self._last is None or heard.name == "zero_":
            return
        if self._read in memories(heard.given):
            self._last.for_input, self._read = True, None

    def _is_doubled(self, number: int, given: Sequence[torch.Tensor]) -> bool:
        """Return whether a call gets the same gradient of an optimizer twice."""
        optimizer = self.watched.registry.optimizers.alive().get(number)
        if optimizer is None or len(given) < _TWICE:
            return False
        again = [each for at, each in enumerate(given) if memories([each]) & memories(given[:at])]
        return bool(again) and self.watched.grammar.state(optimizer).are_among(again)

    def on_kept(self, parameters: Sequence[torch.Tensor]) -> None:
        """Note the optimizers whose gradients the loop has kept and is about to zero."""
        for number in {each for one in parameters for each in self._owners(one)}:
            self._account(number).kept = True

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
        if kind == "forward":
            self._differentiable |= bool(facts["differentiable"])
        elif kind == "backward":
            self._backward(mark, facts["reaches"])
        elif kind == "zero":
            number = int(str(facts["optimizer"]))
            for account in self._accounts.values():
                for each in account.open:
                    each.cleared.add(number)
            self._account(number).clear(mark, examined=bool(facts["examined"]))
        elif kind == "write":
            account = self._account(int(str(facts["optimizer"])))
            account.computed = True
            account.writes.add(mark)
        elif kind == "step" or (kind == "scaler step" and facts["skipped"]):
            self._step(kind, mark, facts)

    def _step(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        number = int(str(facts["optimizer"]))
        account = self._account(number)
        account.twice += bool(facts["stale"])
        account.computed |= bool(facts["assigned"])
        if kind == "step":
            if not self._stepping:  # no step of an optimizer that contains this one
                self._note_shared(account, number)
            self._stepping.append(number)
        account.use(number, mark, direct=not (facts["assigned"] or facts.get("closure")))
        account.since = self.watched.grammar.iteration
        account.waiting = 0
        if not facts.get("closure"):
            account.close()

    def _account(self, number: int) -> Account:
        return self._accounts[number]

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
        self._last = Contribution(
            mark,
            terms_of(losses),
            self._passages.get(key, frozenset()),
            (reaches, self._differentiable),
            self._run,
        )
        self._differentiable = False
        alive = self.watched.registry.optimizers.alive() if numbers else {}
        for number in numbers:
            account = self._account(number)
            clearings = self.watched.grammar.state(alive[number]).clearings
            if account.clearings != clearings and account.open:  # An engine has cleared them.
                account.clear(account.zero, examined=True)
            account.clearings = clearings
            account.add(self._last)

    def _note_shared(self, account: Account, number: int) -> None:
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
