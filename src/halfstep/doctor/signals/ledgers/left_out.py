"""Backward passes whose step the loop leaves out, and whose gradients the next step uses.

A loop leaves out a step because of a loss or a gradient norm far above those before, or because of
a bound between all those that it leaves out and all others. In a window of an accumulation, these
are usual ones. The values stay on their device until the program's end.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

RECENT = 16
OPEN = 64
KEPT = 64
_FEWEST = 4  # steps, before one number of backward passes is the usual one
_FEWEST_LEFT = 4  # to find a bound
_FEWEST_USED = 8
_FEWEST_ABOVE = 6  # to find those above the latest ones, while the losses fall
_LATEST = 4
_NEARLY_ALL = 0.9
_NORMS = frozenset({"linalg_vector_norm", "norm", "vector_norm"})
_COMPARES = frozenset({"gt", "ge", "lt", "le", "__gt__", "__ge__", "__lt__", "__le__"})


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The backward passes of one optimizer that had no step of their own.

    Attributes:
        number: Number of the optimizer.
        steps: Number of steps that used such backward passes, too.
        passes: Number of these backward passes, also those that no step has used.
        compared: Number of them that were compared with those before.
        high: Number of these whose loss, or gradient norm, was far above all of those before, or
            above the latest ones; all of them, if each was above those of all others.
        value: The loss or norm of the first such one.
        before: The highest one of those before.
        what: "loss" or "gradient norm".
        site: The line of their backward.
    """

    number: int
    steps: int
    passes: int
    compared: int
    high: int
    value: float
    before: float
    what: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class LeftOutLedger:
    """The ledger, for each optimizer with such backward passes."""

    signal: ClassVar[str] = "left_out"
    optimizers: tuple[LeftOut, ...] = ()


@dataclass(slots=True, eq=False)
class _Pass:
    mark: Mark | None
    loss: torch.Tensor | None
    norm: torch.Tensor | None = None
    used: bool = False


@dataclass(slots=True)
class _Account:
    sizes: dict[int, int] = field(default_factory=dict)
    usual: int = 0
    made: int = 0
    open: list[_Pass] = field(default_factory=list)
    waiting: int = 0
    recent: deque[_Pass] = field(default_factory=lambda: deque(maxlen=RECENT))
    kept: list[tuple[_Pass, tuple[_Pass, ...]]] = field(default_factory=list)
    lines: set[Mark | None] = field(default_factory=set)
    passes: int = 0
    steps: int = 0

    def use(self) -> None:
        """Book a step."""
        size = self.waiting
        if size > self.usual and self.made >= _FEWEST:
            self.keep(self.open[: size - 1], size - 1)
            self.steps += 1
        elif self.open:
            self.recent.append(self.open[-1])
            self.lines.add(self.open[-1].mark)
        for each in self.open:
            each.used = True
        self.made += 1
        self.sizes[size] = self.sizes.get(size, 0) + 1
        if self.sizes[size] > self.sizes.get(self.usual, 0):
            self.usual = size
        self.clear()

    def keep(self, passes: Sequence[_Pass], count: int) -> None:
        """Keep the backward passes after which a usual window had its step."""
        usual, marks = self.usual, {each.mark for each in self.open}
        if self.made < _FEWEST or not usual or len(marks) > 1 or not marks <= self.lines:
            return
        alone = [*passes][usual - 1 :: usual]
        if True in {each.used for each in alone}:  # by a step of another optimizer
            return
        self.passes += count // usual
        self.kept += [(each, tuple(self.recent)) for each in alone[: KEPT - len(self.kept)]]

    def clear(self) -> None:
        """Begin a new window."""
        self.open.clear()
        self.waiting = 0


class LeavingOut(Signal):
    """Books each backward, step and clearing, with the losses and the norms."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._accounts: dict[int, _Account] = {}
        self._loss: torch.Tensor | None = None

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Remember the loss."""
        alone = len(losses) == 1 and losses[0].numel() == 1
        self._loss = self.watched.tape.entries[-1].value if alone else None

    def on_call(self, heard: Heard) -> None:
        """Remember the last norm that the loop computes after a backward, or a number it reads."""
        if (
            heard.name in _NORMS
            and isinstance(heard.result, torch.Tensor)
            and not heard.result.dim()
        ):
            for account in self._accounts.values():
                if account.open:
                    account.open[-1].norm = heard.result.detach()
        elif heard.name in _COMPARES and heard.given:
            self.on_read(heard.given[0])

    def on_read(self, tensor: torch.Tensor) -> None:
        """Take a number that the loop reads or compares for the norm, if it computes none else."""
        if tensor.dim() or tensor.requires_grad or not tensor.is_floating_point():
            return
        for account in self._accounts.values():
            if account.open and account.open[-1].norm is None:
                account.open[-1].norm = tensor.detach()

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Book an action of the loop."""
        if kind == "backward":
            made = _Pass(mark, self._loss)
            for number in str(facts["reaches"]).split(","):
                if number:
                    account = self._account(number)
                    account.waiting += 1
                    if len(account.open) < OPEN:
                        account.open.append(made)
            self._loss = None
        elif kind in {"zero", "drop"} or (kind == "step" and facts.get("closure")):
            self._account(facts["optimizer"]).clear()
        elif kind == "step" or (kind == "scaler step" and facts["skipped"]):
            self._account(facts["optimizer"]).use()

    def _account(self, number: Fact) -> _Account:
        key = int(str(number))
        account = self._accounts.get(key)
        if account is None:
            account = self._accounts[key] = _Account()
        return account

    def freeze(self) -> dict[str, Any]:
        """Return the ledger; reads the losses and the norms."""
        found = []
        for number, account in sorted(self._accounts.items()):
            if account.waiting > account.usual:  # up to the program's end
                account.keep(account.open, account.waiting)
            if account.kept:
                found.append(_frozen(number, account))
        return {LeftOutLedger.signal: LeftOutLedger(tuple(found))}


def _frozen(number: int, account: _Account) -> LeftOut:
    known: dict[int, float] = {}

    def read(tensor: torch.Tensor) -> float:
        if id(tensor) not in known:
            known[id(tensor)] = float(tensor)
        return known[id(tensor)]

    compared, high, above = 0, [], []
    for each, recent in account.kept:
        pairs = []
        for what in ("loss", "norm"):
            value = getattr(each, what)
            before = [one for its in recent if (one := getattr(its, what)) is not None]
            if value is not None and len(before) >= _FEWEST:
                pairs.append((what, read(value), [*map(read, before)]))
        compared += bool(pairs)
        high += [each for each in pairs if _is_far(*each[1:])][:1]
        latest = [(what, value, usual[-_LATEST:]) for what, value, usual in pairs]
        above += [each for each in latest if each[1] > max(each[2])][:1]
    if compared >= _FEWEST_ABOVE and len(above) >= _NEARLY_ALL * compared:
        high = above  # By chance, one in five of them is above the latest four.
    norms = [read(each.norm) for each, _ in account.kept if each.norm is not None]
    others = {id(one): one for _, its in account.kept for one in its}.values()
    below = [read(each.norm) for each in others if each.norm is not None]
    if (
        len(norms) == len(account.kept) >= _FEWEST_LEFT
        and len(below) >= _FEWEST_USED
        and min(norms) > max(below)
    ):
        compared, high = len(norms), [("norm", each, below) for each in norms]
    what, value, before = high[0] if high else ("loss", 0.0, [0.0])
    return LeftOut(
        number=number,
        steps=account.steps,
        passes=account.passes,
        compared=compared,
        high=len(high),
        value=value,
        before=max(before),
        what="loss" if what == "loss" else "gradient norm",
        site=site(account.kept[0][0].mark),
    )


def _is_far(value: float, before: Sequence[float]) -> bool:
    """Return whether a value is above all others by more than their range, or not finite."""
    low, top = min(before), max(before)
    if not (isfinite(low) and isfinite(top)):
        return False
    return not isfinite(value) or value > top + (top - low)
