"""The ledger of parameters: which parameters of an optimizer get gradients and move, and which not.

A step is booked from what costs nothing: `grad is None`. Gradients and values are compared on a
few elements of each parameter, in sampled steps and at the end, and are read only at the end.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tape.modules import unwrapped
from halfstep.doctor.tensors.elements import some
from halfstep.doctor.tensors.local import local
from halfstep.formats import format_name
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from halfstep.doctor.signals.watched import Watched

_MOST_STEPS = 0.9
ELEMENTS = 64
PATTERNS = 64
_SINCE = 3  # steps since parameters were unfrozen
NAMES = 64
MOST = 4096  # parameters of an optimizer whose elements are compared
FROZEN, NEVER, ZERO, STILL = "frozen", "never", "zero", "still"


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one optimizer that have the same fate.

    Attributes:
        optimizer: Number of the optimizer.
        fate: "frozen" (they require no gradients), "never" (no gradient in any step), "zero" (only
            zeros in the sampled steps) or "still" (gradients, but the values of before).
        why: For "still": "rate" if their learning rate is 0, "lost rate" if the optimizer was given
            another one, "eps" if its eps is far above their gradients, or "rounding".
        count: Number of the parameters.
        names: Names of the first of them.
        changed: Number of them whose values have changed nevertheless.
        loaded: Whether a state was loaded into them.
        format: Their format.
        size: The largest of their sampled gradients, relative to the optimizer's largest one.
    """

    optimizer: int
    fate: str
    why: str
    count: int
    names: tuple[str, ...]
    changed: int
    loaded: bool
    format: str
    size: float


@dataclass(frozen=True, slots=True)
class Owner:
    """The parameters of one optimizer.

    Attributes:
        number: Number of the optimizer.
        parameters: Number of its parameters.
        steps: Number of its steps.
        empty: Number of its steps in which no parameter had a gradient.
        last: Number of its steps until the last one with a gradient.
        largest: The largest sampled gradient of all; 0 without one.
        eps: The eps of its first group; 0 without one.
        hollow: Whether a group of it has no parameters.
        lapsed: Number of parameters that had gradients at first, and none in most of the steps.
    """

    number: int
    parameters: int
    steps: int
    empty: int
    last: int
    largest: float = 0.0
    eps: float = 0.0
    hollow: bool = False
    lapsed: int = 0


@dataclass(frozen=True, slots=True)
class Unowned:
    """Trainable parameters of a model that have gradients, and that no optimizer contains.

    Attributes:
        model: Number of the model.
        kind: Class of the model.
        why: "unfrozen" if the loop made them trainable after an optimizer had been created, "model"
            if no optimizer contains any parameter of the model, or "part".
        count: Number of the parameters.
        total: Number of the trainable parameters of the model.
        names: Names of the first of them.
        loaded: Whether a state was loaded into the model.
        training: Whether the model is in training mode.
        site: The line that made them trainable.
    """

    model: int
    kind: str
    why: str
    count: int
    total: int
    names: tuple[str, ...]
    loaded: bool
    training: bool
    site: Site | None


@dataclass(frozen=True, slots=True)
class ParameterLedger:
    """The ledger.

    Attributes:
        owners: Each optimizer that has made a step.
        parts: The parameters of optimizers that do not train.
        unowned: The parameters that an optimizer should perhaps contain.
    """

    signal: ClassVar[str] = "parameters"
    owners: tuple[Owner, ...] = ()
    parts: tuple[Part, ...] = ()
    unowned: tuple[Unowned, ...] = ()

    def without_gradient(self) -> frozenset[str]:
        """Return the names of trainable parameters that never had a gradient, other than zeros.

        Left out are those that changed otherwise, or into which the loop has loaded a state: they
        may be kept as they are on purpose.
        """
        parts = [each for each in self.parts if each.fate in (NEVER, ZERO)]
        return frozenset(
            name for each in parts if not (each.changed or each.loaded) for name in each.names
        )


@dataclass(slots=True)
class _Account:
    """The steps of one optimizer.

    Attributes:
        owned: Number of its parameters.
        steps: Number of its steps.
        missing: Number of steps by the positions of the parameters without a gradient.
        last: Number of steps until the last one with a gradient.
        start: A few elements of each parameter before its first step, by position.
        largest: The largest gradient of each parameter in the sampled steps, by position.
        rates: The learning rates of each parameter in the sampled steps, by position.
    """

    owned: int = 0
    steps: int = 0
    missing: Counter[tuple[int, ...]] = field(default_factory=Counter)
    last: int = 0
    start: dict[int, torch.Tensor] = field(default_factory=dict)
    largest: dict[int, torch.Tensor] = field(default_factory=dict)
    rates: dict[int, set[float | None]] = field(default_factory=dict)


class Bookkeeping(Signal):
    """Books which parameters have a gradient in each step, and samples gradients and rates."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._accounts: defaultdict[int, _Account] = defaultdict(_Account)
        self._unfrozen: dict[
            int, tuple[weakref.ref[torch.Tensor], Mark | None, tuple[int, ...]]
        ] = {}
        self._given: dict[int, tuple[weakref.ref[torch.Tensor], float | None]] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the method that loads a state into a model."""
        yield Hook(nn.Module, "load_state_dict", self.watched.afterwards(self._on_loaded))
        yield Hook(Optimizer, "add_param_group", self.watched.afterwards(self._on_group))

    def _on_group(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            group = optimizer.param_groups[-1]
            rate = group.get("lr")
            known = float(rate) if isinstance(rate, int | float) else None
            for each in group["params"]:
                self._given[id(each)] = weakref.ref(each), known

    def _rate_given(self, parameter: torch.Tensor) -> float | None:
        reference, rate = self._given.get(id(parameter), (None, None))
        return rate if reference is not None and reference() is parameter else None

    def _on_loaded(self, module: nn.Module, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            self.watched.registry.loaded.update(module.modules())

    def on_trainable(
        self, name: str, tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
    ) -> None:
        """Note parameters that the loop may make trainable, once there is an optimizer."""
        del name, values
        if notes := self.watched.registry.optimizers.notes:
            mark, steps = calling_line(), tuple([each.steps for each in notes])
            for each in tensors:
                if not each.requires_grad and len(self._unfrozen) < MOST:
                    self._unfrozen[id(each)] = weakref.ref(each), mark, steps

    def before_step(self, optimizer: Optimizer, number: int, mark: Mark | None) -> None:
        """Book a step."""
        del mark
        account = self._accounts[number]
        parameters = parameters_of(optimizer)
        if len(parameters) != account.owned:
            account.owned = len(parameters)
            for place, each in enumerate(parameters[:MOST]):
                if place not in account.start:
                    account.start[place] = some(each, ELEMENTS).clone()
        missing = tuple([place for place, each in enumerate(parameters) if each.grad is None])
        account.steps += 1
        if missing in account.missing or len(account.missing) < PATTERNS:
            account.missing[missing] += 1
        if len(missing) < len(parameters):
            account.last = account.steps
        if is_sampled(account.steps):
            _sample(account, optimizer, parameters[:MOST])

    def freeze(self) -> dict[str, Any]:
        """Return the ledger; reads a few elements of each parameter."""
        alive = self.watched.registry.optimizers.alive()
        names = {id(each): name for name, each in self.watched.registry.names().items()}
        owners: list[Owner] = []
        parts: list[Part] = []
        for number, account in sorted(self._accounts.items()):
            empty = account.missing[tuple(range(account.owned))]
            largest = max(map(float, account.largest.values()), default=0.0)
            eps = _eps(alive[number]) if number in alive else 0.0
            owners.append(
                Owner(
                    number,
                    account.owned,
                    account.steps,
                    empty,
                    account.last,
                    largest,
                    eps,
                    number in alive
                    and any(not each["params"] for each in alive[number].param_groups),
                    _lapsed(account),
                )
            )
            if number in alive:
                parts += self._parts(account, alive[number], number, names)
        unowned = tuple(self._unowned(names))
        return {ParameterLedger.signal: ParameterLedger(tuple(owners), tuple(parts), unowned)}

    def _unowned(self, names: dict[int, str]) -> Iterator[Unowned]:
        registry = self.watched.registry
        optimizers = registry.optimizers.alive().values()
        moved = {one: {*map(id, registry.moved_by(one))} for one in optimizers}
        owned = {each for mine in moved.values() for each in mine}
        reported: set[int] = set()
        models = sorted(registry.models.alive().items(), key=lambda each: -_size(each[1]))
        for number, model in models:
            trained = [each for each in model.parameters() if each.requires_grad]
            lost = [
                each
                for each in trained
                if id(each) not in owned | reported | registry.copied
                and registry.had_gradient(each)
                and self._rate_given(each) is None  # An earlier optimizer may have had it.
            ]
            late = [
                each
                for each in trained
                if id(each) not in reported | registry.copied
                and registry.had_gradient(each)
                and self._is_left_out(each, moved)
            ]
            rest = [each for each in lost if not self._was_frozen(each)]
            alone = len(lost) == len(trained)
            reported |= set(map(id, (*lost, *late)))
            for why, mine in (("unfrozen", late), ("model" if alone else "part", rest)):
                if mine:
                    yield Unowned(
                        model=number,
                        kind=type(unwrapped(model)).__name__,
                        why=why,
                        count=len(mine),
                        total=len(trained),
                        names=tuple(names.get(id(each), "") for each in mine)[:NAMES],
                        loaded=model in registry.loaded,
                        training=model.training,
                        site=site(self._unfrozen[id(mine[0])][1]) if why == "unfrozen" else None,
                    )

    def _is_left_out(
        self, parameter: torch.Tensor, moved: Mapping[Optimizer, Container[int]]
    ) -> bool:
        """Return whether no optimizer with steps since a parameter was unfrozen contains it."""
        if not self._was_frozen(parameter):
            return False
        _, _, before = self._unfrozen[id(parameter)]
        registry = self.watched.registry.optimizers
        since = {
            one: registry[one].steps - (before[number] if number < len(before) else 0)
            for number, one in registry.alive().items()
        }
        return max(since.values(), default=0) >= _SINCE and not any(
            id(parameter) in moved[one] for one, steps in since.items() if steps
        )

    def _was_frozen(self, parameter: torch.Tensor) -> bool:
        known = self._unfrozen.get(id(parameter))
        return known is not None and known[0]() is parameter

    def _parts(
        self, account: _Account, optimizer: Optimizer, number: int, names: dict[int, str]
    ) -> Iterator[Part]:
        parameters = parameters_of(optimizer)
        loaded = {
            id(each)
            for module in self.watched.registry.loaded
            for each in module.parameters(recurse=False)
        }
        sizes = {place: float(size) for place, size in account.largest.items()}
        largest = max(sizes.values(), default=0.0)
        groups: dict[tuple[str, str, str, bool], list[int]] = {}
        for place, (fate, reason) in _fates(account, optimizer, sizes).items():
            each = parameters[place]
            why = "lost rate" if reason == "rate" and self._rate_given(each) else reason
            key = fate, why, format_name(each.dtype), id(each) in loaded
            groups.setdefault(key, []).append(place)
        for (fate, why, form, is_loaded), places in groups.items():
            mine = {place: parameters[place] for place in places}
            size = max((sizes.get(place, 0.0) for place in places), default=0.0)
            yield Part(
                optimizer=number,
                fate=fate,
                why=why,
                count=len(mine),
                names=tuple(names.get(id(each), "") for each in mine.values())[:NAMES],
                changed=sum(_is_changed(account, place, each) for place, each in mine.items()),
                loaded=is_loaded,
                format=form,
                size=size / largest if largest else 0.0,
            )


def _sample(account: _Account, optimizer: Optimizer, parameters: list[torch.Tensor]) -> None:
    for place, each in enumerate(parameters):
        grad = each.grad
        if grad is None or grad.layout is not torch.strided or not local(grad).numel():
            continue
        size = torch.linalg.vector_norm(local(grad).detach(), torch.inf)
        before = account.largest.get(place)
        account.largest[place] = size if before is None else torch.maximum(size, before)
    rates = [group.get("lr") for group in optimizer.param_groups for _ in group["params"]]
    for place, rate in enumerate(rates):
        known = rate if isinstance(rate, int | float) else None
        account.rates.setdefault(place, set()).add(known)


def _fates(
    account: _Account, optimizer: Optimizer, sizes: dict[int, float]
) -> dict[int, tuple[str, str]]:
    """Return fate and reason of each parameter that does not train, by its position."""
    eps = _eps(optimizer)
    without = _without(account)
    fates: dict[int, tuple[str, str]] = {}
    for place, each in enumerate(parameters_of(optimizer)):
        if without[place] >= account.steps:
            fates[place] = NEVER if each.requires_grad else FROZEN, ""
        elif place not in sizes or not each.requires_grad:
            continue
        elif sizes[place] == 0:
            fates[place] = ZERO, ""
        elif not _is_changed(account, place, each):
            is_off = account.rates.get(place) == {0.0}
            is_small = sizes[place] < eps
            fates[place] = STILL, "rate" if is_off else "eps" if is_small else "rounding"
    return fates


def _lapsed(account: _Account) -> int:
    """Return how many parameters had gradients in some steps, and none in nearly all of them."""
    without = _without(account).values()
    return sum(_MOST_STEPS * account.steps <= steps < account.steps for steps in without)


def _without(account: _Account) -> Counter[int]:
    """Return in how many steps each parameter had no gradient, by its position."""
    return Counter(place for missing, steps in account.missing.items() for place in missing * steps)


def _eps(optimizer: Optimizer) -> float:
    eps = optimizer.param_groups[0].get("eps", 0.0)
    return float(eps) if isinstance(eps, int | float) else 0.0


def _size(model: nn.Module) -> int:
    return sum(1 for _ in model.parameters())


def _is_changed(account: _Account, place: int, parameter: torch.Tensor) -> bool:
    before, now = account.start.get(place), some(parameter, ELEMENTS)
    # A cast after the last step may round what has changed to what it was.
    if before is None or before.shape != now.shape or before.dtype != now.dtype:
        return True
    return not torch.equal(before.to(now.device), now)
