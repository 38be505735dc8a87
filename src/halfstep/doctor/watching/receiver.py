"""Receives the events of a watched loop, in order, and passes them on to the signals.

A method that gets the original function runs the program's call exactly once and unchanged, and
does doctor's own work before and after the call.
"""

from __future__ import annotations

import functools
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from halfstep.doctor.internals import current_node, is_functorch_tensor, is_loss
from halfstep.doctor.record.sites import Mark, calling_line, library_here
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.report.suggestion import suggested
from halfstep.doctor.signals.bus import Bus
from halfstep.doctor.signals.calls import Calls
from halfstep.doctor.signals.casts import Casts
from halfstep.doctor.signals.evaluations import Evaluations
from halfstep.doctor.signals.facts import gradients_of, parameters_of, state_step
from halfstep.doctor.signals.hooks import Hooks
from halfstep.doctor.signals.origins import Origins
from halfstep.doctor.signals.positions import Positions
from halfstep.doctor.signals.routine import Routine
from halfstep.doctor.signals.signal import Heard, Hook
from halfstep.doctor.signals.threads import Elsewhere
from halfstep.doctor.tape.listener import READS, REQUIRES, Call
from halfstep.doctor.tape.tape import Copies, Entry, autocast_state
from halfstep.doctor.tensors.broadcast import broadcast_of
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.doctor.watching.clearing import Clearing
from halfstep.doctor.watching.functions import Functions
from halfstep.doctor.watching.hearing import Hearing, scores_of
from halfstep.doctor.watching.hold_back import HoldBack
from halfstep.doctor.watching.measuring import Measuring
from halfstep.doctor.watching.scaling import Scaling
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from halfstep.doctor.signals.registry import ModelNotes
    from halfstep.doctor.tape.guard import Inside
    from halfstep.doctor.tape.tape import Multiplier


class Receiver(Bus):
    """Passes all events on to the signals, which form the record of evidence.

    Args:
        hold_back: Whether fused optimizers skip bad steps.
        bundle: Directory to which a bad step is written; None to write none.
        waits: Whether to wait for an accelerator in each step that nothing undoes if it is bad.
        child: Makes the watch of a process that the program starts; None to watch none.

    Attributes:
        scaling: Actions of scalers.
        hearing: Calls of torch functions by the loop.
        investigation: Results of replays.
        measuring: The numbers of each step.
        hold_back: Prevents bad steps from being applied.
        framework: The package that made the first step for the program; "" if the program itself
            made it, None before it.
    """

    def __init__(
        self,
        *,
        hold_back: bool = False,
        bundle: Path | None = None,
        waits: bool = False,
        child: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(self._heard, self._about)
        self.child = child
        self._waits = waits
        self._origins = origins = Origins(self.tape.has_made)
        self.tape.on_copy = origins.copied
        self.hold_back = HoldBack(on=hold_back)
        self.investigation = Investigation(
            self.stack, self[Positions], self.registry.sizes, origins, bundle, suggested
        )
        self.measuring = Measuring(
            self.grammar, self.tape, self.registry, self.investigation, whole=hold_back
        )
        self.scaling = Scaling(self, self._skipped)
        self._routine = Routine(self.registry)
        self.hearing = Hearing(self, self.scaling, origins, self._routine)
        self._clearing = Clearing(self, self.scaling, self.investigation, follow=self._known)
        self._functions = Functions(self, self.hearing)
        self._stepping: list[Inside | None] = []
        self.framework: str | None = None
        self._ran: list[nn.Module] | None = None  # the modules that run inside an examined call
        self._running: Multiplier | None = None  # loss scale of the backward that runs

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of all signals and of the loop's own actions."""
        yield from chain(super().hooks(), self.scaling.hooks(), self._clearing.hooks())
        yield from self._functions.hooks()
        yield Hook(nn.Module, "__call__", self._calling)
        yield Hook(torch.autograd, "backward", self.here(self._on_backward))
        yield Hook(Optimizer, "__init__", self.afterwards(self._on_made))
        yield Hook(Optimizer, "add_param_group", self.afterwards(self._on_changed))
        yield Hook(Optimizer, "load_state_dict", self.afterwards(self._on_loaded))
        for kind in {LRScheduler, ReduceLROnPlateau, *_all_subclasses(LRScheduler)}:
            if "step" in vars(kind):
                yield Hook(kind, "step", self.here(self._on_schedule))

    def _calling(self, original: Any) -> Any:
        # Each call of each submodule runs this wrapper, so attributes are looked up only once.
        guard, stack, is_compiling = self.guard, self.stack, torch.compiler.is_compiling

        def call(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            # The first check: torch.compile recompiles if a value that was read before changes.
            if is_compiling():
                return original(module, *args, **kwargs)
            if guard.is_inside:
                if self._ran is not None:
                    self._ran.append(module)
                return original(module, *args, **kwargs)
            if not self.is_here():
                with self[Elsewhere].call(module):
                    return original(module, *args, **kwargs)
            if self.is_outside():
                return self._on_module(original, module, args, kwargs)
            if not stack.on:
                return original(module, *args, **kwargs)
            stack.enter(module)
            try:
                return original(module, *args, **kwargs)
            finally:
                stack.leave()

        return call

    # ------------------------------------------------------------ models

    def _on_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        entry, before = None, []
        with self.guard.own():
            notes = self.registry.model(module)
            notes.calls += 1
            notes.training_calls += torch.is_grad_enabled()
            if torch.is_grad_enabled():
                entry = self._open_module(module, notes, args, kwargs)
                before = notes.versions(module)
            self._ran = [] if notes.is_looked_at else None
        try:
            with self.guard.inside():
                result = original(module, *args, **kwargs)
        finally:
            ran, self._ran = self._ran, None
        with self.guard.own():
            notes.note_ran(ran or ())
            given, made = tensors_in((args, kwargs)), tensors_in(result)
            scores = scores_of(module, args, kwargs)
            broadcast = broadcast_of(module, given)
            self[Calls].count(notes.facts.kind, given, made, scores, broadcast)
            self.tell("on_model", module, given, made)
            if entry is not None and not _is_preparation(module, entry, made):
                notes.called(module, before, entry.random)
                self.tape.close(entry, made, self.tape.scale_of(given))
                self.grammar.add(
                    "forward",
                    entry.mark,
                    model=self.registry.models.number(module),
                    autocast=",".join(format_name(dtype) for _, dtype in entry.autocast),
                    differentiable=any(each.requires_grad for each in given),
                    mode=notes.modes.note_training(),
                )
            else:
                self.hearing.record_outside(notes.facts.kind, given, made)
                if not torch.is_grad_enabled():
                    self.registry.note_evaluation(module, calling_line(), given)
                    self.tell("on_evaluation", module, calling_line())
                # A probe of shapes with memory that nothing has filled is no evaluation.
                is_data = not any(map(self._origins.is_unfilled, given))
                if not module.training and is_data and not any(map(is_functorch_tensor, made)):
                    self._evaluated(module, args, kwargs, result)
            if is_loss(module):
                name, again = type(module).__name__, functools.partial(original, module)
                halves = [each for each in made if each.dtype in HALVES]
                call = Call(again, args, kwargs, None)
                self.tell("on_call", Heard(name, call, given, halves, result, module))
        return result

    def _open_module(self, module: nn.Module, notes: ModelNotes, args: Any, kwargs: Any) -> Entry:
        self.begin()
        entry = self.tape.open("module", module, args, kwargs)
        entry.mark, entry.autocast = calling_line(), autocast_state()
        entry.random = notes.random_before()
        entry.modules = notes.modules_of(module)
        entry.training = tuple([each.training for each in entry.modules])
        if moving := notes.buffers_that_move(module):
            entry.buffers = Copies(moving)
        return entry

    def _evaluated(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if self[Evaluations].take(result, self.grammar.iteration):
            entry = self.tape.open("module", module, args, kwargs)
            entry.modules = self.registry.model(module).modules_of(module)
            entry.training = tuple([each.training for each in entry.modules])
            entry.autocast, entry.mark = autocast_state(), calling_line()
            self.investigation.evaluation([entry], self.registry.names(), self.grammar.iteration)

    def _heard(self, call: Call, result: Any) -> None:
        if self.is_outside():
            if self._routine.covers(call.function, self.grammar.made):
                self._routine.leave_out(result)
                self._origins.miss(result)
                return
            with self.guard.own():
                self.hearing.take(call, result)

    def _about(self, function: Any, name: str, args: tuple[Any, ...]) -> None:
        if name == READS and isinstance(args[0], nn.Parameter):
            return  # A loop may read those of many parameters in each step.
        if self.is_outside() and not self._routine.covers(function, self.grammar.made):
            with self.guard.own():
                if name == READS:
                    self.tell("on_gradient", args[0])
                    return
                event = "on_trainable" if name in REQUIRES else "before_write"
                self.tell(event, name, tensors_in(args[:1]), tensors_in(args[1:]))

    # ------------------------------------------------------------ backward

    def _on_backward(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if current_node() is not None:  # The inner backward of a reentrant checkpoint.
            return original(*args, **kwargs)
        scale, mark = None, None
        tensors = args[0] if args else kwargs.get("tensors")
        with self.guard.own():
            mark = calling_line()
            self.begin()
            self._clearing.notice_dropped()
            self.grammar.notice_writes(mark)
            scale = self.tape.scale_of(tensors)
            directions = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
            if scale is None and tensors_in(directions):
                # Usually gradients of the backward before: a batch that is trained in parts.
                scale = self._running
            self._open_backward(tensors, directions, mark, scale)
            self.tell("on_backward", [] if tensors_in(directions) else tensors_in(tensors))
            self._running = scale
        with self.guard.inside(), self[Hooks].examined(on=scale is not None):
            result = original(*args, **kwargs)
        with self.guard.own():
            losses = tensors_in(tensors)
            self.grammar.accumulated(
                mark,
                scale,
                autocast=bool(autocast_state()),
                loss_format=format_name(losses[0].dtype) if losses else "",
            )
            for parameter, registered in self[Hooks].limits():
                self.grammar.limited(registered, parameter)
        return result

    def _open_backward(
        self, tensors: Any, directions: Any, mark: Mark | None, scale: Multiplier | None
    ) -> None:
        entry = self.tape.open("backward", None, (tensors,), {"grad_tensors": directions})
        entry.mark = mark
        losses = tensors_in(tensors)
        self.measuring.loss = None
        if losses:
            entry.value = losses[0].detach()
            if losses[0].numel() == 1:
                self.measuring.loss = entry.value
                if scale is not None and self.scaling.loss is not None:
                    self.measuring.loss = self.scaling.loss
        self.tape.close(entry, None, None)

    # ------------------------------------------------------------ optimizers

    def _on_made(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.guard.own():
            self.registry.optimizer(optimizer).mark = calling_line()
        self.on_new_optimizer(optimizer)

    def on_new_optimizer(self, optimizer: Optimizer) -> None:
        """Register an optimizer, and follow the gradients of its current parameters."""
        with self.guard.own():
            self.registry.optimizer(optimizer)
            self.grammar.follow(optimizer, self.registry.optimizers.number(optimizer))
            self[Casts].trained(parameters_of(optimizer))

    def _on_changed(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        if optimizer in self.registry.optimizers:
            self.on_new_optimizer(optimizer)

    def _on_loaded(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.guard.own():
            notes = self.registry.optimizer(optimizer)
            notes.resumed_at = state_step(optimizer)
            notes.resumed_in = self.grammar.made
            self.tell("on_loaded", optimizer, calling_line())

    def _on_schedule(self, original: Any, scheduler: Any, /, *args: Any, **kwargs: Any) -> Any:
        optimizer = getattr(scheduler, "optimizer", None)
        initial = getattr(scheduler, "_is_initial", False)
        if self.guard.is_outside and not initial and isinstance(optimizer, torch.optim.Optimizer):
            with self.guard.own():
                self._known(optimizer)
                plateau = isinstance(scheduler, ReduceLROnPlateau)
                self.grammar.scheduled(calling_line(), optimizer, plateau=plateau)
                given = next((each for each in (*args, *kwargs.values())), None)
                self.tell("on_schedule", scheduler, optimizer, calling_line(), given)
        with self.guard.inside():
            return original(scheduler, *args, **kwargs)

    def _known(self, optimizer: Optimizer) -> int:
        if optimizer not in self.registry.optimizers:
            self.on_new_optimizer(optimizer)
        return self.registry.optimizers.number(optimizer)

    def on_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Record that an optimizer is about to step; with a closure, after its first run.

        Returns:
            None, or the arguments with another closure, which runs the original closure and then
            records the step.
        """
        if not self.is_here():
            return None
        closure = kwargs.get("closure") or next((each for each in args[1:] if callable(each)), None)
        if closure is None:
            self._about_to_step(optimizer)
            inside = self.guard.inside()
            inside.__enter__()
            self._stepping.append(inside)
            return None
        self._stepping.append(None)
        runs = [0]

        @functools.wraps(closure)
        def told() -> Any:
            with self.guard.own():
                self._known(optimizer)
                self.tell("on_closure", optimizer, runs[0])
            with self.guard.outside():
                result = closure()
            if runs[0] == 0:
                self._about_to_step(optimizer, closure=True)
            runs[0] += 1
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": told}
        return tuple(told if each is closure else each for each in args), kwargs

    def _about_to_step(self, optimizer: Optimizer, *, closure: bool = False) -> None:
        with self.guard.own():
            number = self._known(optimizer)
            notes = self.registry.optimizer(optimizer)
            notes.steps += 1
            mark = calling_line()
            if self.framework is None:
                self.framework = library_here()
            if current_node() is not None:  # A hook steps as soon as a gradient is complete.
                self.grammar.arrived(optimizer, self._running)
            elif not self.scaling.steps:
                self.grammar.notice_writes(mark)
            if not self.scaling.steps:
                notes.scale = None
            self.grammar.step(mark, optimizer, by_scaler=self.scaling.steps, closure=closure)
            self.registry.note_reached(optimizer)
            gradients = gradients_of(optimizer)
            found_inf = getattr(optimizer, "found_inf", None)
            by_scaler = self.scaling.steps or found_inf is not None
            numbers = self.measuring.take(
                optimizer,
                gradients,
                skipped=False,
                found_inf=found_inf,
                at_once=self._waits and not (by_scaler or self.hold_back.holds(optimizer)),
            )
            if not self.scaling.steps:
                self.hold_back.before_step(optimizer, numbers)
            self.tell("before_step", optimizer, number, mark)

    def on_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Complete the record of a step, after the optimizer has stepped."""
        del args, kwargs
        if not self.is_here():
            return
        inside = self._stepping.pop() if self._stepping else None
        if inside is not None:
            inside.__exit__()
        self.hold_back.after_step()
        if self.measuring.has_new_trouble:
            with self.guard.own():
                self.measuring.stepped(optimizer)
        with self.guard.own():
            self.tell("after_step", optimizer)

    def _skipped(self, optimizer: Optimizer, found_inf: torch.Tensor | None) -> None:
        self.registry.note_reached(optimizer)
        self._known(optimizer)
        self.measuring.take(optimizer, None, skipped=True, found_inf=found_inf)

    def skipped_unscaled(self, optimizer: Optimizer, found_inf: torch.Tensor) -> None:
        """Record that the engine skips a step of unscaled, non-finite gradients."""
        number, mark = self._known(optimizer), calling_line()
        self.grammar.notice_writes(mark)
        self.grammar.add("drop", mark, optimizer=number)
        self.registry.optimizer(optimizer).skipped += 1
        self._skipped(optimizer, found_inf)

    def dropped(self, optimizer: Optimizer) -> None:
        """Record that the loop skips a step on purpose."""
        self.grammar.add("drop", calling_line(), optimizer=self._known(optimizer))
        self._skipped(optimizer, None)


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


def _all_subclasses(kind: type[Any]) -> set[type[Any]]:
    return {each for child in kind.__subclasses__() for each in ({child} | _all_subclasses(child))}
