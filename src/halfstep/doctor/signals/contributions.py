"""The ledger of gradients: what became of the contribution of each backward.

A contribution ends in one step, or is lost when the loop clears the gradients, or waits. A step
that a scaler skips uses its contributions. Nothing is read from a device before the program's end.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from halfstep.doctor.record.sites import Mark, Site, site
from halfstep.doctor.signals.facts import gradients_of
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.tensors.summary import is_finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halfstep.doctor.record import Fact
    from halfstep.doctor.signals.watched import Watched

SIZES = 64


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
        waiting: Number of backward passes since the last step or the last clearing.
        same_line: Whether these come from a line whose backward passes ended in steps before.
        finite: Whether the gradients at the end of the program are finite.
        since: The iteration of the last step.
        step: The line of the last step.
        backward: The line of the last backward.
        zero: The line that cleared the gradients last.
    """

    number: int
    backwards: int = 0
    used: int = 0
    twice: int = 0
    lost: int = 0
    windows: dict[int, int] = field(default_factory=dict)
    waiting: int = 0
    same_line: bool = False
    finite: bool = True
    since: int = -1
    step: Site | None = None
    backward: Site | None = None
    zero: Site | None = None

    @property
    def usual(self) -> int:
        """The most frequent number of backward passes per step; 0 without a step."""
        return max(self.windows, key=lambda size: self.windows[size], default=0)


@dataclass(frozen=True, slots=True)
class GradientLedger:
    """The ledger, for each optimizer whose gradients a backward has reached."""

    signal: ClassVar[str] = "contributions"
    optimizers: tuple[Contributions, ...] = ()


@dataclass(slots=True)
class _Account:
    backwards: int = 0
    used: int = 0
    twice: int = 0
    lost: int = 0
    waiting: int = 0
    since: int = -1
    windows: Counter[int] = field(default_factory=Counter)
    lines: set[Mark | None] = field(default_factory=set)
    open_lines: set[Mark | None] = field(default_factory=set)
    step: Mark | None = None
    backward: Mark | None = None
    zero: Mark | None = None


class Accounting(Signal):
    """Books each backward, each step and each clearing."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._accounts: dict[int, _Account] = {}

    def on_event(self, kind: str, mark: Mark | None, facts: Mapping[str, Fact]) -> None:
        """Book an action of the loop."""
        if kind == "backward":
            for number in filter(None, str(facts["reaches"]).split(",")):
                account = self._accounts.setdefault(int(number), _Account())
                account.backwards += 1
                account.waiting += 1
                account.open_lines.add(mark)
                account.backward = mark
            return
        if kind not in {"step", "scaler step", "zero"}:
            return
        account = self._accounts.setdefault(int(str(facts["optimizer"])), _Account())
        if kind == "zero":
            account.lost += account.waiting
            account.zero = mark
        elif kind == "scaler step" and not facts["skipped"]:
            return  # The step itself is an event, too.
        else:
            account.twice += bool(facts["stale"])
            account.used += account.waiting
            if len(account.windows) < SIZES or account.waiting in account.windows:
                account.windows[account.waiting] += 1
            account.lines |= account.open_lines
            account.step, account.since = mark, self.watched.grammar.iteration
        account.waiting = 0
        account.open_lines.clear()

    def freeze(self) -> dict[str, Any]:
        """Return the ledger; reads the gradients that wait for a step."""
        alive = self.watched.registry.optimizers.alive()
        made = []
        for number, each in sorted(self._accounts.items()):
            optimizer = alive.get(number)
            waiting = gradients_of(optimizer) if each.waiting and optimizer is not None else []
            made.append(
                Contributions(
                    number=number,
                    backwards=each.backwards,
                    used=each.used,
                    twice=each.twice,
                    lost=each.lost,
                    windows=dict(each.windows),
                    waiting=each.waiting,
                    same_line=bool(each.open_lines) and each.open_lines <= each.lines,
                    finite=all(map(is_finite, waiting)),
                    since=each.since,
                    step=site(each.step),
                    backward=site(each.backward),
                    zero=site(each.zero),
                )
            )
        return {GradientLedger.signal: GradientLedger(tuple(made))}
