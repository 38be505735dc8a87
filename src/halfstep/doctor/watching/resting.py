"""Watches ordinary steps of the trainer only in part, without losing information.

The trainer reports the model, batch and loss function of each step through `StepObserver.runs`.
After some steps without problems, the watch rests: the wrappers and the listener are removed. Then
only the numbers of each step are recorded, and whether loss and gradients are finite. The inputs
that a replay needs are kept until the next step has begun. If a step differs from the steps before,
its calls are put on the tape before its optimizer steps, and the loop is watched in full from then
on.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from halfstep.doctor.internals import is_compiled
from halfstep.doctor.signals.facts import gradients_of, learning_rate
from halfstep.doctor.signals.finite import Finite
from halfstep.doctor.signals.threads import Elsewhere
from halfstep.doctor.tape.tape import Copies, autocast_state, random_state
from halfstep.doctor.watching.micro_batches import MicroBatch, MicroBatches
from halfstep.step_observer import NOBODY, observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from halfstep.doctor.signals.registry import ModelNotes
    from halfstep.doctor.tape.guard import Inside
    from halfstep.doctor.watching.receiver import Receiver

FIRST = 64
"""Number of steps that are watched in full before the first rest."""
AFTER = 8
"""Number of steps that are watched in full after a skipped or non-finite step."""
EVERY = 1000
"""Multiples of this step number are watched in full, and steps 0, 1, 2, 4, 8, ..."""


Passed = tuple[int, float, float | None, float | None, float]
"""A step during a rest: number of micro-batches, loss, gradient norm, loss scale, learning rate."""


def is_due(step: int) -> bool:
    """Return whether a step, counted from 0, is always watched in full."""
    return step & (step - 1) == 0 or step % EVERY == 0


class Rest:
    """Decides when the watch rests, and records the steps during a rest.

    Args:
        receiver: Receives the events of the full watch.
        attach: Starts the full watch.
        detach: Ends the full watch.

    Attributes:
        asleep: Whether the watch rests.
        observer: Receives the engine's reports during a rest.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        attach: Callable[[], None],
        detach: Callable[[], None],
    ) -> None:
        self._receiver = receiver
        self._attach, self._detach = attach, detach
        self.observer = NOBODY
        self.asleep = False
        self._inside: Inside | None = None  # Active from a step that ends a rest until `worked`.
        self._end: Callable[[], None] | None = None
        # In the full watch: micro-batches and steps of the iteration, and number of iterations.
        self._runs = self._steps = self._taken = 0
        self._from = FIRST
        self._troubles = 0
        self._shapes: set[torch.Size] = set()
        self._usual: dict[int, Any] = {}  # events of a usual iteration, by number of micro-batches
        self._compiled: dict[int, bool] = {}
        self._draws = False  # Whether a model or a loss has drawn from torch's generator.
        self._generator: torch.Tensor | None = None
        # During a rest.
        self._waits = False  # Whether a parameter had no gradient so far.
        self._registry, self._series = receiver.registry, receiver.measuring.series
        self._finite = Finite()
        self._number = 0
        self._notes: ModelNotes | None = None
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._window: list[MicroBatch] = []
        self._last: list[MicroBatch] = []
        self._passed: list[Passed] = []  # The steps since the rest began.
        self._base = self._before = 0
        self._due: float = 0  # Number of steps before one must be watched in full.

    # ------------------------------------------------------------ awake

    def consider(self, model: nn.Module, images: torch.Tensor) -> bool:
        """Begin a rest before the next micro-batch if possible, or watch it in full.

        Returns:
            Whether the watch rests from this micro-batch on.
        """
        grammar, series = self._receiver.grammar, self._receiver.measuring.series
        if grammar.between_iterations:
            grammar.close_iteration()
            self._taken += bool(self._steps)
            if series.troubles != self._troubles:
                self._from = max(self._from, self._taken + AFTER)
            elif self._runs and self._steps == 1:
                self._usual[self._runs] = grammar.latest
            self._troubles, self._runs, self._steps = series.troubles, 0, 0
            if self._may_rest(model, images):
                self._fall_asleep(model)
                return True
        self._shapes.add(images.shape)
        self._runs += 1
        self._generator = None if self._draws else torch.get_rng_state()
        return False

    def computed(self) -> None:
        """Check, during the full watch, whether the computation of a loss drew random numbers."""
        if self._generator is not None:
            self._draws = not torch.equal(self._generator, torch.get_rng_state())
            self._generator = None

    def stepped(self) -> None:
        """Note that the engine steps an optimizer during the full watch."""
        self._steps += self._runs > 0

    def _may_rest(self, model: nn.Module, images: torch.Tensor) -> bool:
        optimizers = self._receiver.registry.optimizers.alive().values()
        return (
            self._taken >= self._from
            and bool(self._usual)
            and images.device.type == "cpu"
            and images.shape in self._shapes
            and len(optimizers) == 1
            and not is_due(self._steps_of(next(iter(optimizers))))
            and not self._is_compiled(model)
        )

    def _steps_of(self, optimizer: Optimizer) -> int:
        return self._receiver.registry.optimizer(optimizer).steps

    def _is_compiled(self, model: nn.Module) -> bool:
        # Adding and removing wrappers makes torch.compile recompile.
        known = self._compiled.get(id(model))
        if known is None:
            known = self._compiled[id(model)] = is_compiled(model)
        return known

    def _fall_asleep(self, model: nn.Module) -> None:
        registry = self._receiver.registry
        (self._optimizer,) = registry.optimizers.alive().values()
        self._number = registry.optimizers.number(self._optimizer)
        self._model = model
        self._notes = registry.model(model)
        self._base, self._before = self._receiver.grammar.iteration, self._steps_of(self._optimizer)
        self._waits = registry.waits_for_gradients
        coming = range(EVERY + 1)
        self._due = next((count for count in coming if is_due(self._before + count)), math.inf)
        self._finite = Finite()
        self._window, self._last = [], []
        self._detach()
        self._end = observe(self.observer)
        self.asleep = True

    # ------------------------------------------------------------ asleep

    def keeps(
        self, model: nn.Module, criterion: Any, images: torch.Tensor, labels: torch.Tensor
    ) -> bool:
        """Keep the inputs of a micro-batch, unless it must be watched in full.

        Returns:
            Whether the inputs were kept.
        """
        if not self._window:
            if model is not self._model:
                self._usual.clear()
                return False
            if images.shape not in self._shapes or len(self._passed) >= self._due:
                return False
        notes = self._notes
        assert notes is not None
        draws = self._draws or notes.draws
        self._window.append(
            MicroBatch(
                model,
                criterion,
                (images, labels),
                (images._version, labels._version),
                random_state(everything=notes.draws) if draws else None,
                autocast_state() if torch.is_autocast_enabled("cpu") else (),
                Copies(notes.moving) if notes.moving else None,
            )
        )
        return True

    def ran(self, loss: torch.Tensor) -> None:
        """Note the detached loss of the micro-batch, before its backward."""
        if self._window:
            self._window[-1].loss = loss

    def weighed(self, function: Any, args: tuple[Any, ...]) -> None:
        """Note the function and the arguments that weight the loss in its window."""
        if self._window:
            self._window[-1].weighed = function, args

    def scaled(self, scaler: Any, scale: torch.Tensor) -> None:
        """Note the scaler and the loss scale that multiplies the loss."""
        if self._window:
            told = self._window[-1]
            told.scaler, told.scale = scaler, scale

    def passes(
        self,
        optimizer: Optimizer,
        found_inf: torch.Tensor | None,
        grad_norm: torch.Tensor | None,
        gradients: list[torch.Tensor] | None,
    ) -> bool:
        """Record a step before its optimizer steps; return False if it is not an ordinary step."""
        window = self._window
        if optimizer is not self._optimizer or len(window) not in self._usual:
            return False
        last = window[-1]
        loss, scale = last.loss, last.scale
        if loss is not None and last.weighed is not None:
            loss = last.weighted()
        if loss is None or loss.numel() != 1 or not math.isfinite(value := loss.item()):
            return False
        norm = None if grad_norm is None else grad_norm.item()
        if found_inf is not None:
            sound = not found_inf.item()
        elif norm is not None:
            sound = math.isfinite(norm)
        else:
            gradients = gradients or gradients_of(optimizer)
            sound = self._finite(gradients, self._base + len(self._passed))
        if not sound:
            return False
        if self._waits:
            self._registry.note_gradients()
            self._waits = self._registry.waits_for_gradients
        rate = optimizer.param_groups[0].get("lr")
        if type(rate) is not float:
            rate = learning_rate(optimizer)
        scaled_by = None if scale is None else scale.item()
        self._passed.append((len(window), value, norm, scaled_by, rate))
        self._last, self._window = window, []
        return True

    def wake(self, *, steps: bool = False, looks_back: bool = False) -> None:
        """End the rest, and watch in full again.

        Args:
            steps: Whether the optimizer is about to step. Until `worked`, the changes that the
                engine makes are then not attributed to the loop.
            looks_back: Whether to put the last step on the tape, without its events, because it
                will be examined.
        """
        if not self.asleep:
            return
        assert self._end is not None
        self._end()
        self.asleep = False
        with self._receiver.guard.own():
            self._count_in()
        self._attach()
        if steps:
            self._inside = self._receiver.guard.inside()
            self._inside.__enter__()
        with self._receiver.guard.own():
            self._receiver[Elsewhere].note_autocast()
            telling = MicroBatches(self._receiver, self._usual)
            if not looks_back:
                telling.put_on_tape(self._window, heard=True)
                if steps:
                    telling.tell_of_engine(len(self._window))
            elif window := [each for each in self._window if each.loss is not None]:
                telling.put_on_tape(window, heard=False)  # The program ended within this window.
            elif self._last:
                self._receiver.grammar.reopen()
                telling.put_on_tape(self._last, heard=False)
        self._runs, self._window, self._last = len(self._window), [], []

    def worked(self) -> None:
        """Attribute later events to the loop again: the engine's step is over."""
        if self._inside is not None:
            with self._receiver.guard.own():
                self._receiver.grammar.settle()
            self._inside.__exit__()
            self._inside = None

    def abandon(self) -> None:
        """End the rest without a return to the full watch."""
        if self.asleep and self._end is not None:
            self._end()
        self.asleep = False

    def _count_in(self) -> None:
        """Add the steps since the rest began to the counts of the full watch."""
        receiver, passed = self._receiver, self._passed
        for iteration, (_, loss, norm, scale, rate) in enumerate(passed, self._base):
            self._series.pass_by(iteration, self._number, loss, norm, scale, rate)
        of_windows = Counter(micro_batches for micro_batches, *_ in passed)
        for micro_batches, count in of_windows.items():
            receiver.grammar.repeat(self._usual[micro_batches], count)
        if self._optimizer is not None and self._model is not None:
            receiver.registry.optimizer(self._optimizer).steps += len(passed)
            notes = receiver.registry.model(self._model)
            calls = sum(of_windows.elements()) + len(self._window)
            notes.calls, notes.training_calls = notes.calls + calls, notes.training_calls + calls
        self._passed = []
