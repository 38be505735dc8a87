"""The ledger of writes: who else changes the parameters of an optimizer between its steps.

Writes of the loop are heard before they happen, so a few elements of the parameters can be compared
with those from before, and with those of earlier writes. Version counters show writes that are not
heard. The comparisons stay on the device until the end.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.blocks import loop
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.ledgers.followers import Followers, address
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.elements import some
from halfstep.doctor.tensors.local import local
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

ELEMENTS = 32
PROBES = 8
GAPS = 256
LINES = 32
_REPLACES = {"copy_", "_foreach_copy_", "data", "set_"}
UNHEARD = ""


@dataclass(frozen=True, slots=True)
class Write:
    """A line that writes the parameters of one optimizer between steps.

    Attributes:
        optimizer: Number of the optimizer.
        by: Name of the function; "" if only the version counters show the writes.
        replaces: Whether it replaces the values, and does not compute with them.
        most: Number of parameters that it wrote between two steps, at most.
        count: How often it wrote, counted once between two steps.
        kept: How often the next step used other values than those before the write.
        same: How often these were the values that the line's first write left.
        averaged: How often the written values were an average of the parameters over some steps.
        evaluated: How often a model with these parameters was evaluated after the write, and the
            next step used other values than before.
        reloaded: How often the state of the optimizer was loaded, too.
        first: Number of steps before the first write.
        last: Number of steps before the last write.
        site: The line.
        loop: The innermost loop around it; its statement without one.
    """

    optimizer: int
    by: str
    replaces: bool
    most: int
    count: int
    kept: int
    same: int
    averaged: int
    evaluated: int
    reloaded: int
    first: int
    last: int
    site: Site | None
    loop: Site | None = None


@dataclass(frozen=True, slots=True)
class WriteLedger:
    """All such lines.

    Attributes:
        lines: The lines.
        steps: Number of steps by number of optimizer.
        owned: Number of parameters by number of optimizer.
    """

    signal: ClassVar[str] = "writes"
    lines: tuple[Write, ...] = ()
    steps: dict[int, int] = field(default_factory=dict)
    owned: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Gap:
    """The time between two steps of an optimizer.

    Attributes:
        lines: The positions of the written parameters, by function and line.
        before: A few elements of the probes before the first write, by position.
        averaged: The functions and lines that wrote an average.
        evaluated: The functions and lines that wrote before an evaluation.
        reloaded: Whether the state of the optimizer was loaded.
    """

    lines: dict[tuple[str, Mark | None], set[int]] = field(default_factory=dict)
    before: dict[int, torch.Tensor] = field(default_factory=dict)
    averaged: set[tuple[str, Mark | None]] = field(default_factory=set)
    evaluated: set[tuple[str, Mark | None]] = field(default_factory=set)
    reloaded: bool = False


@dataclass(slots=True)
class _Line:
    most: int = 0
    count: int = 0
    first: int = 0
    last: int = 0
    averaged: int = 0
    reloaded: int = 0
    left: dict[int, torch.Tensor] = field(default_factory=dict)
    kept: list[tuple[torch.Tensor, torch.Tensor, bool]] = field(default_factory=list)


@dataclass(slots=True)
class _Account:
    """The parameters of one optimizer, as its last step has left them.

    Attributes:
        places: Position of each parameter by its address.
        ids: Position of each parameter by its `id`.
        sizes: Number of elements of each parameter.
        probes: Positions of the parameters that are compared.
        versions: Version of each parameter after the last step.
        steps: Number of steps.
        gap: The time since the last step.
        lines: What was observed of each line that writes.
    """

    places: dict[int, int] = field(default_factory=dict)
    ids: dict[int, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    probes: frozenset[int] = frozenset()
    versions: list[int] = field(default_factory=list)
    steps: int = 0
    gap: _Gap = field(default_factory=_Gap)
    lines: dict[tuple[str, Mark | None], _Line] = field(default_factory=dict)

    def place_of(self, tensor: torch.Tensor) -> int | None:
        """Return the position of a parameter, or of a tensor in its memory; None for others."""
        place = self.ids.get(id(tensor))
        return self.places.get(address(tensor)) if place is None else place


class Writes(Signal):
    """Books the writes between the steps of each optimizer."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._accounts: dict[int, _Account] = {}
        self._followers = Followers()

    # ------------------------------------------------------------ steps

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Close the time since the last step."""
        del mark
        account = self._accounts.get(number)
        parameters = parameters_of(optimizer)
        if account is None:
            account = self._accounts[number] = _Account()
        elif len(account.versions) != len(parameters):
            account.places, account.versions = {}, []
        elif account.gap.lines or account.versions != [each._version for each in parameters]:
            self._close(account, parameters)
        account.gap = _Gap()

    def after_step(self, optimizer: Optimizer) -> None:
        """Note the state in which a step leaves the parameters."""
        number = self.watched.registry.optimizers.number(optimizer)
        account, parameters = self._accounts.get(number), parameters_of(optimizer)
        if account is None:
            return
        account.steps += 1
        if not account.places:
            self._find(account, parameters)
        account.versions = [each._version for each in parameters]

    def _find(self, account: _Account, parameters: Sequence[torch.Tensor]) -> None:
        account.places = {address(each): place for place, each in enumerate(parameters)}
        account.ids = {id(each): place for place, each in enumerate(parameters)}
        account.sizes = [local(each).numel() for each in parameters]
        stride = max(1, len(parameters) // PROBES)
        account.probes = frozenset(range(0, len(parameters), stride)[:PROBES])
        self._followers.know(self._addresses())

    def _addresses(self) -> set[int]:
        return {key for each in self._accounts.values() for key in each.places}

    def _close(self, account: _Account, parameters: Sequence[torch.Tensor]) -> None:
        gap, versions = account.gap, [each._version for each in parameters]
        moved = {
            place
            for place, (old, new) in enumerate(zip(account.versions, versions, strict=True))
            if old != new
        }
        if unheard := moved - {place for its in gap.lines.values() for place in its}:
            gap.lines[UNHEARD, None] = unheard
        for key, places in gap.lines.items():
            if key not in account.lines and len(account.lines) >= LINES:
                continue
            line = account.lines.setdefault(key, _Line(first=account.steps))
            line.count += 1
            line.most, line.last = max(line.most, len(places)), account.steps
            line.averaged += key in gap.averaged
            line.reloaded += gap.reloaded
            if len(line.kept) < GAPS:
                self._compare(line, gap, places, parameters, evaluated=key in gap.evaluated)
        self._find(account, parameters)  # Parameters with other memory, after an assignment.

    def _compare(
        self,
        line: _Line,
        gap: _Gap,
        places: Iterable[int],
        parameters: Sequence[torch.Tensor],
        *,
        evaluated: bool,
    ) -> None:
        known = [place for place in places if place in gap.before]
        now = {place: some(parameters[place], ELEMENTS).clone() for place in known}
        line.left = line.left or now
        kept = [_differs(gap.before[place], now[place]) for place in known]
        other = [_differs(line.left.get(place), now[place]) for place in known]
        if kept:
            line.kept.append((torch.stack(kept).any(), torch.stack(other).any(), evaluated))

    # ------------------------------------------------------------ writes

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note a write of parameters, and the values before it."""
        if not self._accounts:
            return
        for account in self._accounts.values():
            hits = [
                (place, number)
                for number, each in enumerate(written)
                if (place := account.place_of(each)) is not None
            ]
            if hits and account.versions:
                self._note(account, name, hits, written, values)

    def _note(
        self,
        account: _Account,
        name: str,
        hits: Sequence[tuple[int, int]],
        written: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
    ) -> None:
        key, gap = (name, calling_line()), account.gap
        gap.lines.setdefault(key, set()).update(place for place, _ in hits)
        for place, number in hits:
            part = local(written[number])
            whole = part.numel() == account.sizes[place]
            if whole and place in account.probes and place not in gap.before:
                gap.before[place] = some(part, ELEMENTS).clone()
            source = values[number] if len(values) == len(written) else None
            if name in _REPLACES and source is not None and self._followers.is_average(source):
                gap.averaged.add(key)

    def on_call(self, heard: Heard) -> None:
        """Follow the tensors that the loop computes from parameters."""
        if self._accounts:
            self._followers.follow(heard, self.watched.grammar.iteration)

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note an evaluation with written parameters."""
        del mark
        for account in self._accounts.values():
            gap = account.gap
            fresh = gap.lines.keys() - gap.evaluated
            if fresh and any(id(each) in account.ids for each in module.parameters()):
                gap.evaluated |= fresh

    def on_loaded(self, optimizer: Optimizer, mark: Mark | None) -> None:
        """Note that the state of an optimizer was loaded."""
        del mark
        account = self._accounts.get(self.watched.registry.optimizers.number(optimizer))
        if account is not None:
            account.gap.reloaded = True

    def freeze(self) -> dict[str, Any]:
        """Return the ledger; reads the comparisons."""
        lines = []
        for number, account in sorted(self._accounts.items()):
            for (by, mark), line in account.lines.items():
                compared = [(bool(a), bool(b), evaluated) for a, b, evaluated in line.kept]
                lines.append(
                    Write(
                        optimizer=number,
                        by=by,
                        replaces=by in _REPLACES,
                        most=line.most,
                        count=line.count,
                        kept=sum(kept for kept, _, _ in compared),
                        same=sum(not other for _, other, _ in compared[1:]),
                        averaged=line.averaged,
                        evaluated=sum(kept and evaluated for kept, _, evaluated in compared),
                        reloaded=line.reloaded,
                        first=line.first,
                        last=line.last,
                        site=site(mark),
                        loop=site(loop(mark, set())),
                    )
                )
        steps = {number: each.steps for number, each in self._accounts.items()}
        owned = {number: len(each.versions) for number, each in self._accounts.items()}
        return {WriteLedger.signal: WriteLedger(tuple(lines), steps, owned)}


def _differs(before: torch.Tensor | None, now: torch.Tensor) -> torch.Tensor:
    if before is None or before.shape != now.shape or before.device != now.device:
        return torch.ones((), dtype=torch.bool, device=now.device)
    return (before != now).any().cpu() if before.device.type == "cpu" else (before != now).any()
