"""Registers the models, optimizers and scalers of a program, numbered in order of appearance.

The latest objects of each kind are kept alive, so that they can be read when the watch ends. If a
program trains many models one after the other, earlier models are freed; the facts that were read
from them remain.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import torch

from halfstep.doctor.internals import modules_of
from halfstep.doctor.record import ModelFacts, OptimizerFacts, ScalerFacts, Static
from halfstep.doctor.record.sites import site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.state.facts import (
    copied_parameters,
    model_facts,
    not_copied_back,
    optimizer_facts,
    parameters_of,
    scaler_facts,
    state_step,
)
from halfstep.doctor.signals.state.modes import Modes
from halfstep.doctor.signals.state.sizes import Sizes
from halfstep.doctor.tape.modules import unwrapped
from halfstep.doctor.tape.tape import RandomState, random_state
from halfstep.doctor.tensors.summary import is_finite
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.record.sites import Mark

HELD = 8
BUFFER_BYTES = 2**26
FIRST_STEPS = 3
EVERY = 50
FEW = 16

Thing = TypeVar("Thing")
Notes = TypeVar("Notes")


class Register(Generic[Thing, Notes]):
    """Numbers objects of one kind, and keeps notes of each.

    Args:
        release: Removes the references to an object from its notes, when the object is no longer
            kept alive.
    """

    def __init__(self, release: Callable[[Notes], None] | None = None) -> None:
        self._release = release
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._held: list[Thing] = []
        self.notes: list[Notes] = []

    def add(self, thing: Thing, notes: Notes) -> None:
        """Add an object, unless it is already registered."""
        if thing not in self._numbers:
            if len(self._held) == HELD:
                self._let_go()
            self._numbers[thing] = len(self.notes)
            self._held.append(thing)
            self.notes.append(notes)

    def _let_go(self) -> None:
        """Let the oldest object go, or the oldest copy for evaluations if few are trained."""
        trained = [getattr(self[each], "has_trained", False) for each in self._held]
        oldest = self._held.pop(trained.index(False) if 2 * sum(trained) <= HELD else 0)
        if self._release is not None:
            self._release(self[oldest])

    def __contains__(self, thing: object) -> bool:
        return thing in self._numbers

    def __getitem__(self, thing: Thing) -> Notes:
        return self.notes[self._numbers[thing]]

    def number(self, thing: Thing) -> int:
        """Return the number of a registered object."""
        return self._numbers[thing]

    def alive(self) -> dict[int, Thing]:
        """Return the objects that still exist, by number."""
        return dict(sorted((number, each) for each, number in list(self._numbers.items())))


@dataclass(slots=True)
class ModelNotes:
    """The observations of a model.

    Attributes:
        facts: The facts of the model when it was last read.
        calls: How often the loop called the model.
        training_calls: Number of these calls with gradients enabled.
        moving: The floating-point buffers that calls of the model change; None before the first
            call in training mode.
        modules: The model and its submodules.
        modes: Its modes in the calls of the loop.
        optimizers: Numbers of the optimizers that update its parameters.
        draws: Whether a call has used the random generator of Python or numpy.
        has_trained: Whether an optimizer has stepped the model. The formats that were read at its
            first step are then kept.
        finite: Names of the buffers that were finite before the first call in training mode.
    """

    facts: ModelFacts
    calls: int = 0
    training_calls: int = 0
    has_trained: bool = False
    finite: frozenset[str] = frozenset()
    moving: list[torch.Tensor] | None = None
    modules: tuple[nn.Module, ...] = ()
    modes: Modes = field(default_factory=Modes)
    optimizers: tuple[int, ...] = ()
    draws: bool = False

    @property
    def is_looked_at(self) -> bool:
        """Whether to examine the current call: one of the first calls, or one in `EVERY`."""
        return self.calls <= FIRST_STEPS or self.calls % EVERY == 0

    def modules_of(self, model: nn.Module) -> tuple[nn.Module, ...]:
        """Return the model and its submodules, as of the last examined call."""
        if not self.modules or self.is_looked_at:
            self.modules = tuple(modules_of(model))
            self.modes.examine(self.modules)
        return self.modules

    def note_ran(self, modules: Iterable[nn.Module]) -> None:
        """Note modules that have run in a call, also those that the model does not contain."""
        known = set(map(id, self.modules))
        new = {id(each): each for each in modules if id(each) not in known}
        if new and self.modules:
            self.modules += tuple(new.values())
            self.modes.examine(self.modules)

    def release(self) -> None:
        """Remove the references to modules and buffers; the next call finds them again."""
        self.modules, self.moving = (), None

    def random_before(self) -> RandomState:
        """Return the state of the random generators that the current call may use."""
        return random_state(everything=self.draws or self.is_looked_at)

    def buffers_that_move(self, model: nn.Module) -> list[torch.Tensor]:
        """Return the floating-point buffers that a call of the model may change.

        Before it is known which buffers change, the largest ones are left out until the rest is not
        larger than `BUFFER_BYTES`.
        """
        if self.moving is not None:
            return self.moving
        buffers = [each for each in model.buffers() if each.is_floating_point()]
        while sum(each.nbytes for each in buffers) > BUFFER_BYTES:
            buffers.remove(max(buffers, key=lambda each: each.nbytes))
        return buffers

    def versions(self, model: nn.Module) -> list[tuple[torch.Tensor, int]]:
        """Return the buffers that may change and their versions; empty once `moving` is known."""
        if self.moving is not None:
            return []
        buffers = self.buffers_that_move(model)
        if model.training:
            finite = {id(each) for each in buffers if is_finite(each)}
            named = unwrapped(model).named_buffers()
            self.finite = frozenset(name for name, each in named if id(each) in finite)
        return [(each, each._version) for each in buffers]

    def called(
        self, model: nn.Module, before: list[tuple[torch.Tensor, int]], random: RandomState | None
    ) -> None:
        """Note the buffers and random generators that a call in training has changed.

        Args:
            model: The model.
            before: The result of `versions` before the call.
            random: The state of the random generators before the call.
        """
        if self.moving is None and model.training:
            self.moving = [each for each, version in before if each._version != version]
        if not self.draws and random is not None and random.python is not None:
            self.draws = random.was_drawn_from()


@dataclass(slots=True)
class OptimizerNotes:
    """The observations of an optimizer.

    Attributes:
        facts: The facts of the optimizer when it was last read.
        steps: How often the optimizer stepped.
        skipped: Number of steps that a scaler skipped.
        resumed_at: The step count of a loaded state; 0 without one.
        resumed_in: Number of iterations before the state was loaded.
        scale: The loss scale of the current step, if a scaler makes the step.
        has_trained: Whether the optimizer has stepped. The formats that were read at its first step
            are then kept.
        groups: Number of its groups when all parameters were last checked.
        in_models: `id` of its parameters that belonged to a model at its first step.
        params: The model's parameters, if the optimizer itself holds copies of them.
        mark: The source line that created the optimizer.
    """

    facts: OptimizerFacts
    has_trained: bool = False
    steps: int = 0
    skipped: int = 0
    resumed_at: int = 0
    resumed_in: int = 0
    scale: torch.Tensor | None = None
    groups: int = 0
    in_models: frozenset[int] = frozenset()
    params: list[torch.Tensor] | None = None
    mark: Mark | None = None


@dataclass(slots=True)
class ScalerNotes:
    """The observations of a scaler.

    Attributes:
        facts: The facts of the scaler when it was last read.
        restored: Whether a state was loaded into the scaler.
        created_in: The iteration in which the scaler was created.
        mark: The source line that created the scaler.
    """

    facts: ScalerFacts
    restored: bool = False
    created_in: int = 0
    mark: Mark | None = None


class Registry:
    """The models, optimizers and scalers of a program.

    Attributes:
        models: Models and losses.
        optimizers: Optimizers.
        scalers: Scalers.
        sizes: Norms of parameters before training.
        loaded: Modules into which a state was loaded.
        copied: `id` of the parameters of which optimizers have copies, as last read.
        loose: The weights of the latest step of a loop without an optimizer; with `torch.func`,
            only while this step is examined.
    """

    def __init__(self) -> None:
        self.models: Register[nn.Module, ModelNotes] = Register(ModelNotes.release)
        self.optimizers: Register[Optimizer, OptimizerNotes] = Register()
        self.scalers: Register[Any, ScalerNotes] = Register()
        self.sizes = Sizes()
        self.loaded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._reached: set[int] = set()
        self._waiting: list[weakref.ref[torch.Tensor]] = []
        self.copied: set[int] = set()
        self.loose: list[torch.Tensor] = []
        self._has_copies = False
        self._lately: deque[Sizes] = deque(maxlen=2)

    def model(self, module: nn.Module) -> ModelNotes:
        """Return the notes of a model, which is registered if it is new."""
        if module not in self.models:
            self.models.add(module, ModelNotes(ModelFacts(type(unwrapped(module)).__name__)))
        return self.models[module]

    def note_evaluation(
        self, module: nn.Module, mark: Mark | None, given: Iterable[torch.Tensor] = ()
    ) -> None:
        """Note a call without gradients.

        In evaluation mode, it is an evaluation of every model that contains the module.

        Args:
            module: The called module.
            mark: The source line of the call.
            given: The tensors in the arguments of the call.
        """
        notes = self.model(module)
        notes.modules_of(module)
        notes.modes.is_tested |= not module.training
        if notes.modes.dependent:
            constant = notes.modes.is_training and any(map(_is_constant, given))
            notes.modes.note_test(mark, constant=constant)
        if notes.modes.is_training:
            return
        for model in self.models.alive().values():
            self.models[model].modes.note_evaluation(notes.modes, mark)

    def note_switch(self, module: nn.Module) -> None:
        """Note that the loop has switched a module, for every model that contains it."""
        switched = set(map(id, modules_of(module)))
        for model in self.models.alive().values():
            modes = self.models[model].modes
            known = [id(each) in switched for each in modes.dependent]
            if any(known):
                modes.note_switch(sets=module.training and all(known))

    def optimizer(self, optimizer: Optimizer) -> OptimizerNotes:
        """Return the notes of an optimizer, which is registered if it is new."""
        if optimizer not in self.optimizers:
            facts = OptimizerFacts(type(optimizer).__name__)
            self.optimizers.add(optimizer, OptimizerNotes(facts, resumed_at=state_step(optimizer)))
        return self.optimizers[optimizer]

    def scaler(self, scaler: Any, created_in: int = 0, mark: Mark | None = None) -> ScalerNotes:
        """Return the notes of a scaler, which is registered if it is new."""
        if scaler not in self.scalers:
            facts = scaler_facts(scaler, restored=False, created_in=created_in, mark=mark)
            self.scalers.add(scaler, ScalerNotes(facts, created_in=created_in, mark=mark))
        return self.scalers[scaler]

    def note_reached(self, optimizer: Optimizer) -> None:
        """Note which parameters have gradients when an optimizer steps.

        All parameters are checked in the first steps, at regular intervals, and when the optimizer
        has got another group. Parameters that have
        never had a gradient are checked in every step.
        """
        notes = self.optimizer(optimizer)
        count = notes.steps + notes.skipped
        groups = len(optimizer.param_groups)
        if count <= FIRST_STEPS or count % EVERY == 0 or groups != notes.groups:
            notes.groups = groups
            everything = [*self._trained(), *self.moved_by(optimizer)]
            self._waiting += [weakref.ref(each) for each in everything]
        self.note_gradients()
        if self._has_copies and count > 1 and count & (count - 1) == 0:  # steps 2, 4, 8, ...
            self._lately.append(Sizes())
            self._lately[-1].start([*self._trained(), *self.moved_by(optimizer)])
        if count == 1:
            self.read()
            notes.has_trained = True
            self.sizes.start(self.moved_by(optimizer))
            mine = frozenset(map(id, self.moved_by(optimizer)))
            notes.in_models = mine & set(map(id, self._trained()))
            if notes.in_models < mine:  # may be copies of a model's parameters
                self.sizes.start(self._trained())
                self._has_copies = True
            number = self.optimizers.number(optimizer)
            for model in self.models.alive().values():
                inside = [*self.models[model].modules, *model.modules()]
                if any(
                    id(each) in mine for one in inside for each in one.parameters(recurse=False)
                ):
                    self.models[model].has_trained = True
                    self.models[model].optimizers += (number,)

    def note_backward(self) -> None:
        """Note gradients that the loop may take from a model before the step updates copies."""
        if self._has_copies:
            self.note_gradients()

    def note_gradients(self) -> None:
        """Note which of the parameters without a gradient so far have one now."""
        waiting = {
            id(each): each for reference in self._waiting if (each := reference()) is not None
        }
        self._reached |= {key for key, each in waiting.items() if each.grad is not None}
        self._waiting = [
            weakref.ref(each) for key, each in waiting.items() if key not in self._reached
        ]

    def had_gradient(self, parameter: torch.Tensor) -> bool:
        """Return whether a parameter had a gradient in any step so far."""
        return parameter.grad is not None or id(parameter) in self._reached

    def moved_by(self, optimizer: Optimizer) -> list[torch.Tensor]:
        """Return the parameters that an optimizer updates, possibly by way of copies."""
        params = self.optimizers[optimizer].params
        return parameters_of(optimizer) if params is None else params

    def _trained(self) -> list[torch.Tensor]:
        return [each for model in self.models.alive().values() for each in model.parameters()]

    def owners(self, module: nn.Module) -> list[int]:
        """Return the numbers of the optimizers that update parameters of a module."""
        held = set(map(id, module.parameters()))
        return [
            number
            for number, optimizer in self.optimizers.alive().items()
            if not held.isdisjoint(map(id, self.moved_by(optimizer)))
        ]

    def steps_of(self, optimizers: Iterable[int]) -> int:
        """Return how many steps some optimizers have made, by their numbers."""
        return sum(self.optimizers.notes[number].steps for number in optimizers)

    def names(self) -> dict[str, torch.Tensor]:
        """Return every parameter by its name in a model, or by its position in an optimizer."""
        models = self.models.alive()
        several = sum(any(True for _ in each.parameters()) for each in models.values()) > 1
        names: dict[str, torch.Tensor] = {}
        for number, model in models.items():
            prefix = f"{type(unwrapped(model)).__name__}[{number}]." if several else ""
            for name, each in unwrapped(model).named_parameters():
                names[prefix + name] = each
        known = {id(each) for each in names.values()}
        for number, optimizer in self.optimizers.alive().items():
            for place, tensor in enumerate(parameters_of(optimizer)):
                if id(tensor) not in known:
                    names[f"optimizer {number}, parameter {place}"] = tensor
        loose = [each for each in self.loose if id(each) not in known]
        return names | {f"weight {place}": each for place, each in enumerate(loose)}

    def read(self) -> None:
        """Update the facts of all objects that still exist."""
        models, optimizers = self.models.alive(), self.optimizers.alive()
        moved = {one: self.moved_by(one) for one in optimizers.values()}
        owned = {id(each) for params in moved.values() for each in params}
        known = {id(each) for each in self._trained()}
        foreign = [
            each
            for params in moved.values()
            for each in params
            if id(each) not in known and (each.requires_grad or self.had_gradient(each))
        ]
        copied = copied_parameters(models.values(), owned, self._reached, foreign)
        self.copied = {id(each) for each in copied}
        early = self._lately[0] if len(self._lately) > 1 else self.sizes
        lost = not_copied_back(copied, foreign, early)
        for model in models.values():
            notes = self.models[model]
            facts = model_facts(model, owned, self._reached, lost, notes.finite)
            if notes.has_trained:  # A wrapper may have cast the model back since.
                before = notes.facts
                facts = replace(
                    facts,
                    formats=before.formats,
                    first_half=before.first_half,
                    modules=before.modules,
                    positions=before.positions,
                )
            notes.facts = facts
        for optimizer in optimizers.values():
            mine = self.optimizers[optimizer]
            replaced = mine.in_models.intersection(map(id, moved[optimizer])) - known
            now = optimizer_facts(optimizer, moved, known, self._reached)
            now = replace(now, replaced=len(replaced))
            mine.facts = replace(now, formats=mine.facts.formats) if mine.has_trained else now
        for scaler in self.scalers.alive().values():
            its = self.scalers[scaler]
            its.facts = scaler_facts(
                scaler, restored=its.restored, created_in=its.created_in, mark=its.mark
            )

    def freeze(self) -> Static:
        """Return the facts of all objects."""
        self.read()
        return Static(
            models=tuple(
                replace(
                    each.facts,
                    calls=each.calls,
                    training_calls=each.training_calls,
                    optimizers=each.optimizers,
                )
                for each in self.models.notes
            ),
            optimizers=tuple(
                replace(
                    each.facts,
                    steps=each.steps,
                    skipped=each.skipped,
                    resumed_at=each.resumed_at,
                    resumed_in=each.resumed_in,
                    site=site(each.mark),
                    made_by=statement(each.mark),
                )
                for each in self.optimizers.notes
            ),
            scalers=tuple(each.facts for each in self.scalers.notes),
        )


def _is_constant(tensor: torch.Tensor) -> bool:
    """Return whether many numbers of a tensor are equal, as far as this costs no wait."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.numel() < FEW:
        return False
    return type(tensor) is torch.Tensor and bool(
        (tensor.detach().flatten()[:FEW] == tensor.flatten()[0]).all()
    )
