"""The loop's calls of models and losses."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import nn

from halfstep.doctor.actions.hearing import Hearing, scores_of
from halfstep.doctor.internals import is_functorch_tensor, is_loss
from halfstep.doctor.record.classes import file_of
from halfstep.doctor.record.sites import calling_line, is_of_user
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.signals.program.calls import Calls
from halfstep.doctor.signals.program.threads import Elsewhere
from halfstep.doctor.signals.signal import Heard, Hook, Signal
from halfstep.doctor.signals.state.registry import EVERY
from halfstep.doctor.signals.values.evaluations import Evaluations
from halfstep.doctor.signals.values.origins import Origins
from halfstep.doctor.tape.listener import Call
from halfstep.doctor.tape.tape import Copies, Entry, autocast_state
from halfstep.doctor.tensors.broadcast import broadcast_of
from halfstep.doctor.tensors.nesting import is_in_graph, tensors_in
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.state.registry import ModelNotes
    from halfstep.doctor.signals.watched import Watched

_HEARD = 32  # calls of a loss, and later one in EVERY


class Models(Signal):
    """Records the calls of models on the tape, and passes them on to the signals."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._hearing, self._elsewhere = watched[Hearing], watched[Elsewhere]
        self._calls, self._origins = watched[Calls], watched[Origins]
        self._ran: list[nn.Module] | None = None  # the modules that run inside an examined call
        self._losses: WeakSet[nn.Module] = WeakSet()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the call of a module."""
        yield Hook(nn.Module, "__call__", self._calling)

    def _calling(self, original: Any) -> Any:
        # Each call of each submodule runs this wrapper, so attributes are looked up only once.
        guard, stack, is_compiling = (
            self.watched.guard,
            self.watched.stack,
            torch.compiler.is_compiling,
        )
        is_here, is_outside = self.watched.is_here, self.watched.is_outside

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:  # noqa: PLR0911
            # The first check: torch.compile recompiles if a value that was read before changes.
            if is_compiling():
                return original(module, *args, **kwargs)
            if guard.is_inside:
                if self._ran is not None:
                    self._ran.append(module)
                if guard.is_in_loss and next(module.parameters(), None) is not None:
                    with guard.inside():
                        return original(module, *args, **kwargs)
                return original(module, *args, **kwargs)
            if not is_here():
                with self._elsewhere.call(module):
                    return original(module, *args, **kwargs)
            if is_outside():
                return self._on_module(original, module, args, kwargs)
            if not stack.on:
                return original(module, *args, **kwargs)
            stack.enter(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                stack.leave()

        return call

    def _on_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if _is_code_of_loop(module, args, kwargs):
            return original(module, *args, **kwargs)
        if type(module).__hash__ is not nn.Module.__hash__:
            with self.watched.guard.inside():  # A metric, whose hash changes with its state.
                return original(module, *args, **kwargs)
        watched, entry, before = self.watched, None, []
        with watched.guard.own():
            notes = watched.registry.model(module)
            notes.calls += 1
            notes.training_calls += torch.is_grad_enabled()
            if torch.is_grad_enabled():
                watched.tell("on_given", module, args, kwargs)
                entry = self._open(module, notes, args, kwargs)
                before = notes.versions(module)
            self._ran = [] if notes.is_looked_at else None
        try:
            is_soon = notes.calls <= _HEARD or notes.calls % EVERY == 0
            with watched.guard.inside(heard=is_soon and module in self._losses):
                result = original(module, *args, **kwargs)
        finally:
            ran, self._ran = self._ran, None
        with watched.guard.own():
            notes.note_ran(ran or ())
            given, made = tensors_in((args, kwargs)), tensors_in(result)
            scores = scores_of(module, args, kwargs)
            broadcast = broadcast_of(module, given)
            self._calls.count(notes.facts.kind, given, made, scores, broadcast)
            watched.tell("on_model", module, given, made)
            if entry is not None and not _is_preparation(module, entry, made):
                notes.called(module, before, entry.random)
                watched.tape.close(entry, made, watched.tape.scale_of(given))
                watched.grammar.add(
                    "forward",
                    entry.mark,
                    model=watched.registry.models.number(module),
                    autocast=",".join(format_name(dtype) for _, dtype in entry.autocast),
                    differentiable=any(each.requires_grad for each in given),
                    mode=notes.modes.note_training(),
                )
            else:
                self._hearing.record_outside(notes.facts.kind, given, made)
                if not torch.is_grad_enabled():
                    watched.registry.note_evaluation(module, calling_line(), given)
                    watched.tell("on_evaluation", module, calling_line())
                # A probe of shapes with memory that nothing has filled is no evaluation.
                is_data = not any(map(self._origins.is_unfilled, given))
                if not module.training and is_data and not any(map(is_functorch_tensor, made)):
                    self._evaluated(module, args, kwargs, result)
            if is_loss(module):
                name, again = type(module).__name__, functools.partial(original, module)
                halves = [each for each in made if each.dtype in HALVES]
                call = Call(again, args, kwargs, None)
                watched.tell("on_call", Heard(name, call, given, halves, result, module))
            elif notes.calls == 1 and _is_own_loss(module, given, made):
                self._losses.add(module)
        return result

    def _open(self, module: nn.Module, notes: ModelNotes, args: Any, kwargs: Any) -> Entry:
        self.watched.begin()
        entry = self._entry(module, notes, args, kwargs)
        entry.random = notes.random_before()
        if moving := notes.buffers_that_move(module):
            entry.buffers = Copies(moving)
        return entry

    def _entry(self, module: nn.Module, notes: ModelNotes, args: Any, kwargs: Any) -> Entry:
        entry = self.watched.tape.open("module", module, args, kwargs)
        entry.mark, entry.autocast = calling_line(), autocast_state()
        entry.modules = notes.modules_of(module)
        entry.training = tuple([each.training for each in entry.modules])
        return entry

    def _evaluated(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        watched = self.watched
        if watched[Evaluations].take(result, watched.grammar.iteration):
            entry = self._entry(module, watched.registry.model(module), args, kwargs)
            # After a step, the weights are those of the next iteration.
            weights_of = watched.grammar.made
            watched[Investigation].evaluation([entry], watched.registry.names(), weights_of)


def _is_code_of_loop(module: nn.Module, args: Any, kwargs: Any) -> bool:
    """Return whether a module is given a model, and no tensors, such as an average of its weights.

    It is no model then, although it is called like one: what it does is heard as code of the loop.
    """
    given = (*args, *kwargs.values())
    return (
        any(isinstance(each, nn.Module) for each in given)
        and not tensors_in(given)
        and not any(each.requires_grad for each in module.parameters())
    )


def _is_own_loss(module: nn.Module, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """Return whether a module of the program trains nothing itself, and has made a loss.

    Signals hear some of its later calls, as they do where a loss is a function of the program.
    """
    return (
        bool(made)
        and all(each.ndim == 0 and each.requires_grad for each in made)
        and any(map(is_in_graph, given))
        and is_of_user(file_of(type(module)))
        and not any(each.requires_grad for each in module.parameters())
    )


def _is_preparation(module: nn.Module, entry: Entry, made: list[torch.Tensor]) -> bool:
    """Return whether a module prepares data, such as an image transform, and is not a model.

    Such a module has no parameters, runs without autocast, and neither takes nor returns tensors
    that are in half precision or require gradients. So its results are ordinary batches.
    """
    return (
        not entry.autocast
        and not any(each.requires_grad or each.dtype in HALVES for each in made)
        and not any(each.requires_grad or each.dtype in HALVES for each, _ in entry.given)
        and next(module.parameters(), None) is None
    )
