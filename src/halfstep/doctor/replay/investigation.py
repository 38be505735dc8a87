"""Investigates a bad step: examines its inputs, traces it, and replays it in several ways."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from halfstep.doctor.bundle.files import write_step
from halfstep.doctor.internals import is_compiled
from halfstep.doctor.record import (
    BadGradients,
    Birth,
    Growth,
    Precision,
    Replay,
    TargetRange,
)
from halfstep.doctor.record.attempts import Attempts
from halfstep.doctor.replay.influence.influences import Influences
from halfstep.doctor.replay.inputs import Inputs
from halfstep.doctor.replay.lags import LagSignal
from halfstep.doctor.replay.replay import Replayer
from halfstep.doctor.replay.trying import Trying
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import environment
from halfstep.doctor.signals.values.origins import Origins
from halfstep.doctor.signals.values.positions import Positions
from halfstep.doctor.signals.values.targets import target_ranges
from halfstep.doctor.tape.tape import given_tensors
from halfstep.doctor.tensors.summary import summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from halfstep.doctor.bundle.recorder import Recorder
    from halfstep.doctor.record.attempts import Attempt
    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.tape import Entry

MOST = 4
GROWN = 2.0
_LOWER = 2.0**8
_OVERWRITTEN = (
    "its update had put inf or NaN into the parameters before its loss was read; to read the loss "
    "before the update, write `halfstep doctor -m halfstep` in place of `halfstep`"
)
_MOVED = "the last step is not finite with the parameters that its update made"


class Investigation(Signal):
    """Collects the results of replays.

    Attributes:
        note: The reason why a bad step has no bundle; "" if there is no such step.
        repeats: Number of the step that is being replayed; None while no replay runs.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._bundle, self._suggest = watched.settings.bundle, watched.settings.suggest
        self._sizes = watched.registry.sizes
        self._inputs = Inputs(watched[Origins])
        self.attempts: list[Attempt] = []
        self.note = ""
        self.repeats: int | None = None
        self._count = 0
        self._was_only_scale = False
        self.births: list[Birth] = []
        self.replays: list[Replay] = []
        self.targets: list[TargetRange] = []
        self.precision = Precision()
        self.gradients = BadGradients()
        self.growth = Growth()

    @property
    def done(self) -> bool:
        """Whether a culprit was found, other than a loss scale that was too high."""
        return not self._was_only_scale and any(each.culprit for each in self.births)

    def step(
        self,
        entries: list[Entry],
        parameters: dict[str, torch.Tensor],
        iteration: int,
        why: str,
        *,
        scale: float | None,
        moved: Sequence[torch.Tensor] = (),
        is_late: bool = False,
        is_skipped: bool = False,
    ) -> None:
        """Investigate a bad training step.

        Args:
            entries: The calls of the step.
            parameters: The parameters of models and optimizers, by name.
            iteration: Number of the step.
            why: The reason for the investigation.
            scale: Loss scale of the step; None without a scaler.
            moved: The tensors that the step's optimizer updates, possibly copies of the parameters.
            is_late: Whether the step is over, so that its gradients may be gone.
            is_skipped: Whether the optimizer skips the step, and so keeps the parameters.
        """
        if self._count >= MOST or self.done:
            return
        self._count += 1
        self._forget_search()
        self.targets += target_ranges(entries)
        self._inputs.examine(entries, parameters, iteration)
        if not is_late:
            self._look_at_gradients(moved or [*parameters.values()], iteration)
        if is_late and not is_skipped and self._inputs.discard_parameters(iteration):
            overwritten = Replay(
                name="plain",
                iteration=iteration,
                why=why,
                finite=False,
                loss=None,
                largest_gradient=None,
                same=None,
                scale=scale or 1.0,
                note=_OVERWRITTEN,
            )
            self.replays.append(overwritten)
            return
        replayer = self.replayer(entries, parameters, iteration, why)
        with self._repeating(iteration):
            self._replay(replayer, parameters, scale)

    def _replay(
        self, replayer: Replayer, parameters: dict[str, torch.Tensor], scale: float | None
    ) -> None:
        iteration, plain = replayer.iteration, replayer.plain()
        self.replays.append(plain)
        if plain.note:
            return
        lower = None
        if scale is not None and scale != 1:
            lower = replayer.at_scale(1.0 if scale > 1 else scale / _LOWER)
        if plain.finite:
            self._inputs.judge((), iteration)
        else:
            self._trace(replayer, lower)
        if lower is not None:
            self.replays.append(lower)
            self._was_only_scale = not plain.finite and lower.finite
        elif scale is None and not plain.finite and _is_number(plain.loss):
            self.replays.append(replayer.with_smaller_loss())
        exact = replayer.fp32()
        self.replays.append(exact)
        if not plain.finite:
            self._try(replayer, [plain, exact], lower)
            self._look_at_sizes(replayer, parameters)
        if environment(parameters.values()).tf32:
            self.replays.append(replayer.without_tf32())
        if any(map(is_compiled, replayer.models)):
            self.replays.append(replayer.eager())

    def _trace(self, replayer: Replayer, lower: Replay | None) -> None:
        """Find the births in a bad step.

        Args:
            replayer: Runs the step.
            lower: The step at a lower loss scale; None if it has no loss scale above or below 1.
        """
        births, tracer, traced = replayer.traced(record=self._bundle is not None)
        if lower is not None and not lower.finite and not lower.note:
            # Without the overflows that a lower loss scale prevents.
            births = replayer.traced(scale=lower.scale)[0] or births
        self.births += births
        if traced.note:
            self.replays.append(traced)
        else:
            self._inputs.judge(births, replayer.iteration)
        if tracer.recorder is not None:
            self._keep(tracer.recorder, replayer)

    def _try(self, replayer: Replayer, replays: Sequence[Replay], lower: Replay | None) -> None:
        """Try the changes that rules suggest for a bad step, unless a lower loss scale mends it."""
        if self._suggest is None or (lower is not None and lower.finite):
            return
        births = [each for each in self.births if each.iteration == replayer.iteration]
        trying = Trying(replayer, self._suggest, scaled=lower is not None)
        found = trying.attempt(births, replays)
        self.attempts += [found] if found is not None else []

    def evaluation(
        self, entries: list[Entry], parameters: dict[str, torch.Tensor], iteration: int
    ) -> None:
        """Investigate a call of a model in evaluation that gave NaN."""
        if self.done:
            return
        self._inputs.examine(entries, parameters, iteration)
        replayer = self.replayer(entries, parameters, iteration, "evaluation gave NaN")
        with self._repeating(iteration):
            births, _, traced = replayer.traced()
            self.births += [_in_evaluation(each) for each in births]
            if traced.note:
                self.replays.append(traced)
            else:
                self._inputs.judge(births, iteration)
            self.replays.append(replayer.fp32())

    def last(
        self,
        entries: list[Entry],
        parameters: dict[str, torch.Tensor],
        iteration: int,
        *,
        error: str,
    ) -> None:
        """Examine the last step: why it failed, or its precision and headroom if it did not.

        Args:
            entries: The calls of the step.
            parameters: The parameters of models and optimizers, by name.
            iteration: Number of the step.
            error: Class and message of the exception that ended the program; "" without one.
        """
        if not entries:
            return
        replayer = self.replayer(entries, parameters, iteration, "the last step")
        with self._repeating(iteration):
            plain = replayer.plain()
        is_bad = not plain.note and not plain.finite and plain.same is not False
        if not is_bad:  # `step` measures the targets of a bad step.
            self.targets += target_ranges(entries)
        if plain.note:
            if not error or plain.note != error:  # The program's own exception is known already.
                self.replays.append(plain)
        elif is_bad:
            self.step(
                entries, parameters, iteration, "the last step is not finite", scale=plain.scale
            )
        elif not plain.finite:
            # The random numbers are the step's own, but its parameters have been updated since.
            self.precision = Precision(note=_MOVED)
        elif not error:
            self._inputs.examine_hidden(entries, iteration)
            self.growth = Growth(iteration, self._sizes.read(parameters))
            with self._repeating(iteration):
                self.precision, births = replayer.precision()
                if not self.precision.note:
                    self.watched[Influences].examine(replayer)
                    self.watched[LagSignal].examine(replayer)
            self.births += [replace(each, is_last=True) for each in births]

    def replayer(
        self, entries: list[Entry], parameters: dict[str, torch.Tensor], iteration: int, why: str
    ) -> Replayer:
        """Return what runs a step again.

        Args:
            entries: The calls of the step.
            parameters: The parameters of models and optimizers, by name.
            iteration: Number of the step.
            why: The reason for running it again.
        """
        if not any(each.requires_grad for each in parameters.values()):
            leaves = {id(each): each for _, each in given_tensors(entries) if each.requires_grad}
            named = {f"tensor {number}": each for number, each in enumerate(leaves.values())}
            parameters = {**parameters, **named}
        computed = frozenset(self._inputs.computed)
        stack, positions = self.watched.stack, self.watched[Positions]
        return Replayer(entries, parameters, stack, positions, iteration, why, computed)

    @contextmanager
    def _repeating(self, iteration: int) -> Iterator[None]:
        self.repeats = iteration
        try:
            yield
        finally:
            self.repeats = None

    def _look_at_sizes(self, replayer: Replayer, parameters: dict[str, torch.Tensor]) -> None:
        """Measure the growth of the parameters; if it is large, replay the step at first norms."""
        self.growth = Growth(replayer.iteration, self._sizes.read(parameters))
        if self.growth.factor > GROWN:
            self.replays.append(replayer.at_first_size(self.growth.parameters))

    def _forget_search(self) -> None:
        """Discard the results of a step that was bad only because its loss scale was too high.

        Overflows that a division turned into 0 are kept, because they do not depend on the loss
        scale.
        """
        if self._was_only_scale:
            losses = {each.name: each.loss for each in self.replays}
            compared = Precision(loss=losses.get("plain"), exact_loss=losses.get("fp32"))
            if compared.disagrees and self.precision.loss is None:
                self.precision = compared
            self.births = [each for each in self.births if each.is_divided]
            self.replays, self.gradients = [], BadGradients()
            self._inputs.found, self.targets = [], []
        self._was_only_scale = False

    def _keep(self, recorder: Recorder, replayer: Replayer) -> None:
        if recorder.note:
            self.note = (
                self.note or f"no bundle of step {replayer.iteration} was written: {recorder.note}"
            )
        elif self._bundle is not None:
            write_step(self._bundle, recorder, replayer.iteration, replayer.why, replayer.loss)
            self._bundle, self.note = None, ""

    def _look_at_gradients(self, moved: Sequence[torch.Tensor], iteration: int) -> None:
        gradients = [each.grad for each in moved if each.grad is not None]
        if self.gradients.iteration >= 0:
            return
        counted = [summary(each) for each in gradients if not each.is_sparse]
        self.gradients = BadGradients(
            iteration=iteration,
            elements=sum(math.prod(each.shape) for each in counted),
            nans=sum(each.nans for each in counted),
            infs=sum(each.infs for each in counted),
            zeros=sum(each.zeros for each in counted),
        )

    def freeze(self) -> dict[str, Any]:
        """Return the results of all replays."""
        return {
            "births": tuple(self.births),
            "replays": tuple(self.replays),
            "precision": self.precision,
            "inputs": tuple(self._inputs.found),
            "targets": tuple(self.targets),
            "gradients": self.gradients,
            "growth": self.growth,
            Attempts.signal: Attempts(tuple(self.attempts)),
        }


def _is_number(loss: float | None) -> bool:
    return loss is not None and math.isfinite(loss)


def _in_evaluation(birth: Birth) -> Birth:
    return replace(birth, phase_step="evaluation")
