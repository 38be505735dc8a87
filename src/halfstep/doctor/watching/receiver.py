"""Receives the events of the hooks in `attach.py`, in order.

A method that gets the original function runs the program's call exactly once and unchanged, and
does doctor's own work before and after the call.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from halfstep.doctor.internals import current_node, is_loss, is_tracing
from halfstep.doctor.record.sites import Mark, calling_line
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.signals.casts import Casts, format_of
from halfstep.doctor.signals.evaluations import Evaluations
from halfstep.doctor.signals.facts import gradients_of, parameters_of, state_step
from halfstep.doctor.signals.grammar import Grammar
from halfstep.doctor.signals.hooks import Hooks
from halfstep.doctor.signals.origins import Origins
from halfstep.doctor.signals.positions import Positions
from halfstep.doctor.signals.registry import Registry
from halfstep.doctor.signals.samples import Look, Samples, is_sampled
from halfstep.doctor.signals.saves import Saves
from halfstep.doctor.signals.threads import Elsewhere
from halfstep.doctor.tape.guard import Guard
from halfstep.doctor.tape.listener import Call, Listener
from halfstep.doctor.tape.modules import ModuleStack
from halfstep.doctor.tape.tape import Copies, Entry, Tape, autocast_state, random_state
from halfstep.doctor.tensors.broadcast import broadcast_of
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.doctor.watching.clearing import Clearing
from halfstep.doctor.watching.hearing import Hearing, scores_of
from halfstep.doctor.watching.hold_back import HoldBack
from halfstep.doctor.watching.measuring import Measuring
from halfstep.doctor.watching.scaling import Scaling
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.doctor.signals.registry import ModelNotes
    from halfstep.doctor.tape.guard import Inside
    from halfstep.doctor.tape.tape import Multiplier


class Receiver:
    """Passes all events on to the signals, which form the record of evidence.

    Args:
        hold_back: Whether fused optimizers skip bad steps.
        bundle: Directory to which a bad step is written; None to write none.
        waits: Whether to wait for an accelerator in each step that nothing undoes if it is bad.

    Attributes:
        grammar: The actions of the loop in order.
        tape: The calls of the current step, for a replay.
        samples: Measurements of sampled steps.
        evaluations: Results of models in evaluation.
        saves: Saved checkpoints.
        elsewhere: Calls in other threads.
        positions: Whole numbers that a half-precision format rounds.
        casts: Modules that the program casts to half precision, and possibly back.
        registry: Models, optimizers, scalers.
        scaling: Actions of scalers.
        hearing: Calls of torch functions by the loop.
        clearing: Gradients that the loop clears.
        investigation: Results of replays.
        measuring: The numbers of each step.
        hold_back: Prevents bad steps from being applied.
        hooks: Hooks of parameters that limit gradients.
        is_autocast_off: Whether torch has switched off an autocast for CUDA, because there is no
            GPU.
        graphs: Number of CUDA graphs that the program has begun to capture.
    """

    def __init__(
        self, *, hold_back: bool = False, bundle: Path | None = None, waits: bool = False
    ) -> None:
        self._waits = waits
        self.hold_back = HoldBack(on=hold_back)
        self.hooks = Hooks()
        self.stack = ModuleStack()
        self.listener = Listener(self._heard)
        self.guard = Guard(self.listener)
        self.grammar = Grammar()
        self.tape = Tape()
        self.samples = Samples()
        self.evaluations = Evaluations()
        self.saves = Saves()
        self.positions = Positions()
        self.casts = Casts()
        self.elsewhere = Elsewhere(threading.get_ident())
        self.registry = Registry()
        origins = Origins(self.tape.has_made)
        self.tape.on_copy = origins.copied
        self.investigation = Investigation(
            self.stack, self.positions, self.registry.sizes, origins, bundle
        )
        self.measuring = Measuring(
            self.grammar, self.tape, self.registry, self.investigation, whole=hold_back
        )
        self.scaling = Scaling(
            self.guard,
            self.grammar,
            self.tape,
            self.registry,
            begin=self.begin,
            on_skip=self._skipped,
        )
        self.hearing = Hearing(
            self.grammar,
            self.tape,
            self.registry,
            self.scaling,
            self.positions,
            origins,
            begin=self.begin,
        )
        self.clearing = Clearing(
            self.guard,
            self.grammar,
            self.tape,
            self.registry,
            self.scaling,
            self.investigation,
            follow=self._known,
        )
        self._stepping: list[Inside | None] = []
        self._look: Look | None = None
        self._begun = -1
        self._running: Multiplier | None = None  # loss scale of the backward that runs
        self.is_autocast_off = False
        self.graphs = 0

    def is_outside(self) -> bool:
        """Return whether the loop itself runs, not a model, an optimizer, doctor or a trace."""
        # Whatever doctor computed would become a part of the traced graph.
        return self.guard.is_outside and not is_tracing()

    def is_here(self) -> bool:
        """Return whether this is the loop's thread outside doctor's work, or a traced replay."""
        return self.guard.is_here or (self.stack.on and self.guard.is_own)

    def is_in_loop(self) -> bool:
        """Return whether the loop itself runs, in the thread that doctor watches."""
        return self.guard.is_here and self.is_outside()

    def forget_process(self) -> None:
        """Stop watching in a forked process."""
        self.guard.leave_process()

    def begin(self) -> None:
        """Begin an iteration on the tape, if the next event begins one."""
        # Calls of functions are not events: only the first one of an iteration begins it.
        if self.grammar.between_iterations and self._begun != self.grammar.made:
            self._begun = self.grammar.made
            self.tape.next_iteration()

    # ------------------------------------------------------------ models and functions

    def on_module(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run and record a call of a model by the loop."""
        entry, before = None, []
        with self.guard.own():
            notes = self.registry.model(module)
            notes.calls += 1
            notes.training_calls += torch.is_grad_enabled()
            if torch.is_grad_enabled():
                entry = self._open_module(module, notes, args, kwargs)
                before = notes.versions(module)
        with self.guard.inside():
            result = original(module, *args, **kwargs)
        with self.guard.own():
            given, made = tensors_in((args, kwargs)), tensors_in(result)
            scores = scores_of(module, args, kwargs)
            broadcast = broadcast_of(module, given)
            self.hearing.calls.count(notes.facts.kind, given, made, scores, broadcast)
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
                    self.registry.note_evaluation(module, calling_line())
                if not module.training:
                    self._evaluated(module, args, kwargs, result)
            if is_loss(module):
                again = functools.partial(original, module)
                self.hearing.overflows.take(type(module).__name__, again, args, kwargs, result)
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
        if self.evaluations.take(result, self.grammar.iteration):
            entry = self.tape.open("module", module, args, kwargs)
            entry.modules = self.registry.model(module).modules_of(module)
            entry.training = tuple([each.training for each in entry.modules])
            entry.autocast, entry.mark = autocast_state(), calling_line()
            self.investigation.evaluation([entry], self.registry.names(), self.grammar.iteration)

    def on_function(self, original: Any, args: Any, kwargs: Any) -> Any:
        """Run and record a call of a compiled function or of a user's autograd function."""
        state = random_state()
        with self.guard.inside():
            result = original(*args, **kwargs)
        with self.guard.own():
            call = Call(original, args, kwargs, state)
            self.hearing.record(call, tensors_in((args, kwargs)), tensors_in(result))
        return result

    def _heard(self, call: Call, result: Any) -> None:
        if self.is_outside():
            with self.guard.own():
                self.hearing.take(call, result)

    # ------------------------------------------------------------ backward

    def on_backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        """Run and record a backward."""
        if current_node() is not None:  # The inner backward of a reentrant checkpoint.
            return original(*args, **kwargs)
        scale, mark = None, None
        tensors = args[0] if args else kwargs.get("tensors")
        with self.guard.own():
            mark = calling_line()
            self.begin()
            self.clearing.notice_dropped()
            self.grammar.notice_writes(mark)
            scale = self.tape.scale_of(tensors)
            directions = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
            if scale is None and tensors_in(directions):
                # Usually gradients of the backward before: a batch that is trained in parts.
                scale = self._running
            self._open_backward(tensors, directions, mark, scale)
            self._running = scale
        with self.guard.inside(), self.hooks.examined(on=scale is not None):
            result = original(*args, **kwargs)
        with self.guard.own():
            losses = tensors_in(tensors)
            self.grammar.accumulated(
                mark,
                scale,
                autocast=bool(autocast_state()),
                loss_format=format_name(losses[0].dtype) if losses else "",
            )
            for parameter, registered in self.hooks.limits():
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

    def on_made_optimizer(self, optimizer: Optimizer) -> None:
        """Register a new optimizer, with the line that created it."""
        with self.guard.own():
            self.registry.optimizer(optimizer).mark = calling_line()
        self.on_new_optimizer(optimizer)

    def on_new_optimizer(self, optimizer: Optimizer) -> None:
        """Register an optimizer, and follow the gradients of its current parameters."""
        with self.guard.own():
            self.registry.optimizer(optimizer)
            self.grammar.follow(optimizer, self.registry.optimizers.number(optimizer))
            self.casts.trained(parameters_of(optimizer))

    def on_changed_optimizer(self, optimizer: Optimizer) -> None:
        """Follow the gradients of the parameters that were added to an optimizer."""
        if optimizer in self.registry.optimizers:
            self.on_new_optimizer(optimizer)

    def on_loaded_optimizer(self, optimizer: Optimizer) -> None:
        """Note that a state was loaded into an optimizer."""
        with self.guard.own():
            notes = self.registry.optimizer(optimizer)
            notes.resumed_at = state_step(optimizer)
            notes.resumed_in = self.grammar.made

    def on_schedule(self, original: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
        """Run and record a step of a learning-rate scheduler."""
        optimizer = getattr(scheduler, "optimizer", None)
        initial = getattr(scheduler, "_is_initial", False)
        if self.guard.is_outside and not initial and isinstance(optimizer, torch.optim.Optimizer):
            with self.guard.own():
                self._known(optimizer)
                plateau = isinstance(scheduler, ReduceLROnPlateau)
                self.grammar.scheduled(calling_line(), optimizer, plateau=plateau)
        with self.guard.inside():
            return original(scheduler, *args, **kwargs)

    def _known(self, optimizer: Optimizer) -> int:
        if optimizer not in self.registry.optimizers:
            self.on_new_optimizer(optimizer)
        return self.registry.optimizers.number(optimizer)

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Record that an optimizer is about to step; with a closure, after its first run.

        Returns:
            None, or the arguments with another closure, which runs the original closure and then
            records the step.
        """
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
            if is_sampled(notes.steps - 1):
                names = {id(each): name for name, each in self.registry.names().items()}
                self._look = Look(optimizer, number, self.grammar.iteration, names)

    def after_step(self, optimizer: Optimizer) -> None:
        """Complete the record of a step, after the optimizer has stepped."""
        inside = self._stepping.pop() if self._stepping else None
        if inside is not None:
            inside.__exit__()
        self.hold_back.after_step()
        if self.measuring.has_new_trouble:
            with self.guard.own():
                self.measuring.stepped(optimizer)
        if self._look is not None:
            with self.guard.own():
                self.samples.extend(self._look.after())
            self._look = None

    def on_cast(self, original: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run and record a call of `half`, `bfloat16`, `float` or `to` of a module."""
        if not self.is_outside():
            return original(module, *args, **kwargs)
        before = format_of(module)
        result = original(module, *args, **kwargs)
        with self.guard.own():
            self.casts.cast(
                module,
                before,
                steps=self.grammar.made,
                is_trained=self.registry.owns_any_of(module),
                mark=calling_line(),
            )
        return result

    def on_save(self, original: Any, args: Any, kwargs: Any) -> Any:
        """Record the object that `torch.save` saves, and run the call."""
        with self.guard.own():
            self.saves.take(args[0] if args else kwargs.get("obj"), calling_line())
        return original(*args, **kwargs)

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
