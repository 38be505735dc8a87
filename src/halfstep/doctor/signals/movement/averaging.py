"""The ledger of averages: how the loop computes averages of weights, read from their values.

A tensor counts as an average of a parameter if it has the parameter's shape but not its memory, if
its values are near the parameter's, and if the loop computes its next values from both. An update
is then a sum `kept * average + added * parameter`, and both factors follow from a few elements.
They are computed on the device, in the first updates and in every 32nd step, and read at the end.

Parameters that the loop joins to one vector count as one parameter.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim import swa_utils

from halfstep.doctor.record.averages import (
    AveragedModel,
    AverageLedger,
    AverageLine,
    AverageUpdate,
)
from halfstep.doctor.record.blocks import loop
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.movement.multiples import Multiples, is_new, norms_of
from halfstep.doctor.signals.program.routine import EVERY
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.tensors.elements import some
from halfstep.doctor.tensors.local import local
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.optim import Optimizer

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

ELEMENTS = 256
PROBES = 4
FIRST = 64  # updates, from which on only those of some steps are measured
STEPS = 4 * EVERY  # from one of them to the next; the calls of a routine are heard in each
MOST = 8  # updates that are measured in a step
LINES = 16
UPDATES = 128  # of a line
JOINS = frozenset({"cat", "concat", "concatenate"})
NEAR = 0.5
_JOINED = -1  # stands for the address of an average that is joined for each update
_FORMATS = {torch.float32, torch.float64}  # averages.py examines those in half formats
_ALIKE = 1e-3  # of the parameter: the average is too near to it to tell both factors apart
_APART = 1e-2  # of the parameter: a sound update of a nearer average may be rounded away
_EXACT = 1e-3  # of the update's size: what both factors may leave unexplained


@dataclass(slots=True)
class _Probe:
    """A parameter whose averages are searched for.

    Attributes:
        optimizer: Number of its optimizer.
        parameter: The parameter.
        key: Its address.
        is_joined: Whether it is a vector of several parameters, which lives for a step.
    """

    optimizer: int
    parameter: torch.Tensor
    key: int
    is_joined: bool = False


@dataclass(slots=True)
class _Pending:
    """An update that ends before the next step.

    Attributes:
        mark: The line.
        average: The average.
        before: Its values before.
        probe: The parameter; None until the loop uses it.
        is_written: Whether the loop writes the average, or else only computes with it.
    """

    mark: Mark | None
    average: torch.Tensor
    before: torch.Tensor
    probe: _Probe | None
    is_written: bool


@dataclass(slots=True)
class _Mixed:
    """A tensor that was computed since the last step.

    Attributes:
        mark: The line.
        tensor: The tensor, which must stay alive as long as its address is compared.
        sources: The parameters from which it was computed.
        average: Another tensor of its shape from which it was computed.
        is_used: Whether something else was computed from it.
    """

    mark: Mark | None
    tensor: torch.Tensor
    sources: frozenset[int]
    average: torch.Tensor | None
    is_used: bool = False


@dataclass(slots=True)
class _Line:
    """The inner products of a line's updates, and whether each average has changed in them."""

    optimizer: int
    products: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    first: dict[int, torch.Tensor] = field(default_factory=dict)
    changed: dict[int, list[torch.Tensor]] = field(default_factory=dict)


class Averaging(Signal):
    """Measures the updates of averages."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._probes: dict[torch.Size, list[_Probe]] = {}
        self._own: set[int] = set()
        self._lines: dict[Mark | None, _Line] = {}
        self._pending: dict[int, _Pending] = {}
        self._mixed: dict[int, _Mixed] = {}
        self._written: set[int] = set()  # parameters that the loop has written since the last step
        self._moved: dict[int, int] = {}  # the address of an average after its last update
        self._noted = 0
        self._on = False  # whether updates until the next step are measured
        self._known: set[tuple[int, int]] = set()
        self._joined: set[int] = set()  # the addresses of vectors of parameters
        self._number = 0  # of the last optimizer that has stepped
        self._ran: WeakSet[nn.Module] = WeakSet()
        self._evaluated: WeakKeyDictionary[nn.Module, Mark | None] = WeakKeyDictionary()

    # ------------------------------------------------------------ steps

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Close the updates since the last step, and find the parameters of a new optimizer."""
        del mark
        if self._pending or self._mixed:
            self._close()
        self._number = number
        known = number, len(optimizer.param_groups)
        if known not in self._known:
            self._known.add(known)
            self._find(optimizer, number)
        is_due = self._noted < FIRST or self.watched.grammar.made % STEPS == 0
        self._on = is_due and bool(self._probes)

    def _find(self, optimizer: Optimizer, number: int) -> None:
        parameters = [
            each
            for each in parameters_of(optimizer)
            if each.dtype in _FORMATS and local(each).numel() > 1 and address(each)
        ]
        self._own |= {address(each) for each in parameters}
        known = {each.key for alike in self._probes.values() for each in alike}
        chosen = [each for each in parameters if each.ndim > 1] or parameters
        stride = max(1, len(chosen) // PROBES)
        for each in chosen[::stride][:PROBES]:
            if address(each) not in known:
                probe = _Probe(number, each, address(each))
                self._probes.setdefault(each.shape, []).append(probe)

    def _close(self) -> None:
        computed = set()
        for mixed in self._mixed.values():
            average = mixed.average
            if average is None or mixed.is_used or not _is_plain(average):
                continue
            probe = self._probe(average, mixed.sources)
            pending = self._pending.get(address(average))
            if probe is not None:
                before = pending.before if pending else some(average, ELEMENTS)
                self._measure(mixed.mark, probe, before, some(mixed.tensor, ELEMENTS))
                computed.add(address(average))
        for key, each in self._pending.items():
            alike = self._probes.get(each.average.shape, []) if each.probe is None else [each.probe]
            if len(alike) != 1 or alike[0].key in self._written:
                continue  # An average that is swapped in and out has its own values again.
            if each.is_written or key in computed:
                self._changed(key, each, alike[0])
        self._pending.clear()
        self._mixed.clear()
        self._written.clear()
        if self._joined:
            self._own -= self._joined
            self._joined.clear()
            self._probes = {
                shape: kept
                for shape, its in self._probes.items()
                if (kept := [each for each in its if not each.is_joined])
            }

    def _changed(self, key: int, update: _Pending, probe: _Probe) -> None:
        after, parameter = some(update.average, ELEMENTS).clone(), some(probe.parameter, ELEMENTS)
        if update.is_written:
            self._measure(update.mark, probe, update.before, after)
            self._moved[key] = address(update.average)
        line = self._line(update.mark, probe)
        if line is None:
            return
        if probe.is_joined:  # The average is joined anew for each update, so it shows the last one.
            key, after = _JOINED, update.before
        if key in line.first and line.first[key].shape != after.shape:
            del line.first[key], line.changed[key]  # the memory of another tensor
        first, its = line.first.setdefault(key, update.before), line.changed.setdefault(key, [])
        if len(its) < UPDATES:
            same = (first == after).all() & (first == update.before).all()
            distance = torch.linalg.vector_norm(parameter - update.before)
            size = torch.linalg.vector_norm(parameter)
            apart, near = distance > _APART * size, distance <= NEAR * size
            its.append(torch.stack([same, apart, near]))

    # ------------------------------------------------------------ updates

    def before_write(
        self, name: str, written: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note the values of an average before the loop writes it."""
        del name
        if not self._on or len(self._pending) >= MOST:
            return
        whole = len(values) == len(written)
        for number, tensor in enumerate(written):
            if tensor.shape not in self._probes or not _is_plain(tensor):
                continue
            key = address(tensor)
            its = self._probes[tensor.shape]
            if key in self._own:
                self._written.add(key)
            if not key or key in self._own or any(each.parameter.grad is tensor for each in its):
                continue
            sources = {address(each) for each in (values[number : number + 1] if whole else values)}
            for mixed in [self._mixed[each] for each in sources if each in self._mixed]:
                sources |= mixed.sources
                mixed.is_used = True
            self._note(tensor, key, self._probe(tensor, sources), is_written=True)

    def _probe(self, tensor: torch.Tensor, sources: Iterable[int]) -> _Probe | None:
        for each in self._probes.get(tensor.shape, ()):
            parameter = each.parameter
            if each.key in sources and parameter.dtype == tensor.dtype:
                return each if parameter.device == tensor.device else None
        return None

    def _note(
        self, tensor: torch.Tensor, key: int, probe: _Probe | None, *, is_written: bool
    ) -> None:
        pending = self._pending.get(key)
        if pending is None:
            self._noted += 1
            before = some(tensor, ELEMENTS).clone()
            self._pending[key] = _Pending(calling_line(), tensor, before, probe, is_written)
            return
        pending.probe = pending.probe or probe
        if is_written and not pending.is_written:
            pending.is_written, pending.mark, pending.average = True, calling_line(), tensor

    def on_call(self, heard: Heard) -> None:
        """Note what the loop computes from a parameter and its average."""
        result = heard.result
        if not self._on:
            return
        if heard.name in JOINS:
            self._join(heard)
        if (
            not isinstance(result, torch.Tensor)
            or result.requires_grad
            or result.shape not in self._probes
        ):
            return
        key = address(result)
        if not key or key in self._own or key in self._pending:
            return  # a parameter, or an average that is written
        sources, average = self._sources(heard, result, key)
        if sources or average is not None:
            self._mixed[key] = _Mixed(calling_line(), result, sources, average)
        if average is not None and _is_plain(average):
            probe = self._probe(average, sources)
            if probe is not None:
                self._note(average, address(average), probe, is_written=False)

    def _sources(
        self, heard: Heard, result: torch.Tensor, key: int
    ) -> tuple[frozenset[int], torch.Tensor | None]:
        """Return the parameters, and another tensor of its shape, that a result comes from."""
        sources, average = frozenset[int](), None
        for each in heard.given:
            its = address(each)
            mixed = self._mixed.get(its)
            if its in self._own:
                sources |= {its}
            elif mixed is not None:
                mixed.is_used = mixed.is_used or its != key
                sources |= mixed.sources
                average = average if mixed.average is None else mixed.average
            elif its and its != key and each.shape == result.shape:
                average = each
        return sources, average

    def _join(self, heard: Heard) -> None:
        """Take a vector of several parameters, as `parameters_to_vector` makes it, as one."""
        result, parts = heard.result, [address(each) for each in heard.given]
        if result.ndim == 1 and sum(each in self._own for each in parts) > 1:
            key = address(result)
            probe = _Probe(self._number, result, key, is_joined=True)
            self._probes.setdefault(result.shape, []).append(probe)
            self._joined.add(key)
            self._own.add(key)

    def _line(self, mark: Mark | None, probe: _Probe) -> _Line | None:
        if mark not in self._lines and len(self._lines) >= LINES:
            return None
        return self._lines.setdefault(mark, _Line(probe.optimizer))

    def _measure(
        self, mark: Mark | None, probe: _Probe, before: torch.Tensor, after: torch.Tensor
    ) -> None:
        line = self._line(mark, probe)
        if line is not None:
            three = torch.stack([before, some(probe.parameter, ELEMENTS), after]).double()
            if len(line.products) == UPDATES:  # The first ones tell how often it is updated.
                del line.products[UPDATES // 2]
            line.products.append((self.watched.grammar.made, three @ three.T))

    # ------------------------------------------------------------ the end

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Note a model that runs in training mode."""
        del given, made
        if module.training:
            self._ran.add(module)

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Note a line that evaluates a model in evaluation mode."""
        if not module.training:
            self._evaluated[module] = mark

    def freeze(self) -> dict[str, Any]:
        """Return the ledger; reads the measurements."""
        self._close()
        lines, averages = [], set[int]()
        for mark, line in self._lines.items():
            changed = {key: torch.stack(each).tolist() for key, each in line.changed.items()}
            averages |= {
                place
                for key, its in changed.items()
                if key != _JOINED and any(near and not same for same, _, near in its)
                for place in (key, self._moved.get(key, key))
            }
            updates = [_update(step, products) for step, products in line.products]
            known = tuple(each for each in updates if each is not None)
            still = max(map(_still, changed.values()), default=0)
            lines.append(
                AverageLine(line.optimizer, known, still, site(mark), site(loop(mark, set())))
            )
        return {AverageLedger.signal: AverageLedger(tuple(lines), tuple(self._models(averages)))}

    def _models(self, averages: set[int]) -> Iterator[AveragedModel]:
        registry = self.watched.registry
        models = registry.models.alive()
        near = self.watched[Multiples].near()
        trained = [each for each in models.values() if registry.owners(each)]
        moved = any(not is_new(norm) for each in trained for _, norm in norms_of(each))
        for number, model in models.items():
            is_torch = isinstance(model, swa_utils.AveragedModel)
            is_average = any(address(each) in averages for each in model.parameters())
            if is_torch or is_average or number in near:
                norms = [*norms_of(model)]
                stale = tuple(name for name, norm in norms if is_new(norm))
                yield AveragedModel(
                    number,
                    int(cast("torch.Tensor", model.n_averaged)) if is_torch else -1,
                    is_torch and not (model.avg_fn or model.multi_avg_fn or model.use_buffers),
                    near.get(number, stale) if moved else (),
                    len(norms),
                    model in self._ran,
                    site(self._evaluated.get(model)),
                    self.watched[Multiples].vectors(number),
                )


def _still(changes: Sequence[tuple[bool, bool, bool]]) -> int:
    """Return the number of updates of an average that has never changed; 0 if it has."""
    if not changes or not changes[0][2] or not all(same for same, _, _ in changes):
        return 0
    return sum(apart for _, apart, _ in changes)


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in {torch.Tensor, nn.Parameter}


def _update(step: int, products: torch.Tensor) -> AverageUpdate | None:
    """Return an update.

    Args:
        step: Number of steps before it.
        products: The inner products of average, parameter and result, shape (3, 3), fp64.

    Returns:
        The update; None if the average is too near to the parameter to tell both factors apart, or
        if another tensor has a part in the result.
    """
    (bb, bp, ba), (_, pp, pa), (_, _, aa) = products.tolist()
    apart = bb - 2 * bp + pp
    determinant = bb * pp - bp * bp
    if not (apart > _ALIKE**2 * pp > 0 and determinant > 1e-12 * bb * pp):
        return None
    kept = (ba * pp - pa * bp) / determinant
    added = (pa * bb - ba * bp) / determinant
    left = aa - kept * ba - added * pa
    if left > _EXACT**2 * apart and left > 1e-12 * aa:
        return None
    return AverageUpdate(step, kept, added, apart <= NEAR**2 * pp)
