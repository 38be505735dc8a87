"""A step as one call: recorded once on a GPU, and then replayed by one launch.

The first windows run eagerly. Then each kind of micro-step (the first of a window, one in between,
the one that closes it) is recorded as one graph: forward, backward, unscaling, clipping, skipping,
update, loss scale, average and running statistics. A replay runs no code of the engine, so this
module does for it what the engine does on the host: it counts, and hands on the numbers. Where a
replay would not be the same step, such as for a batch of another shape, the step runs eagerly.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch.utils._pytree import tree_map_only

from halfstep import step_observer
from halfstep.engine.closing.outcome import WindowOutcome
from halfstep.engine.closing.result import OptimizerStep, StepResult
from halfstep.engine.graphs.inputs import Inputs, signature_of
from halfstep.engine.graphs.settings import LearningRates, settings_of
from halfstep.engine.misuse import EngineWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.closing.outcome import Outcome
    from halfstep.engine.graphs.recorders import Recorder
    from halfstep.engine.window.window import Window

WARM_UP = 3
"""Number of windows that run eagerly before any is recorded."""
_MOST_CHANGES = 8
"""Number of times that steps are recorded anew after a setting has changed."""


class Steps(Protocol):
    """What a captured step needs of its engine."""

    steps: int

    @property
    def assembly(self) -> Assembly:
        """The parts of the engine."""

    @property
    def windows(self) -> Sequence[Window]:
        """The windows that the steps close."""

    @property
    def accumulate(self) -> int:
        """Number of micro-steps in a full window."""

    @property
    def loads(self) -> int:
        """Number of times that a state was loaded."""

    def take(self, batch: tuple[Any, ...], samples: int | None) -> tuple[Any, StepResult]:
        """Take a micro-step; return what the loss function returned, and the engine's result."""

    def closes(self) -> bool:
        """Tell whether the next micro-step closes the window."""

    def begin(self) -> None:
        """Do what the engine does on the host before each step."""


class Kind(NamedTuple):
    """The kind of a micro-step: whether it opens its window, and whether it closes it."""

    opens: bool
    closes: bool


@dataclass(slots=True, eq=False)
class Recording:
    """A recorded micro-step. Its tensors are in memory that each replay overwrites.

    Attributes:
        key: Signature of the batch, and its number of samples.
        inputs: The memory of the batch.
        replay: Launches the micro-step.
        returned: What the loss function returned.
        result: The engine's result.
        outcomes: The outcome of the step; empty if the window stays open.
        numbers: The numbers of `outcomes` and then of `result`, shape (numbers,).
        grads: For each window, the gradients of its parameters afterwards; None for none.
    """

    key: tuple[Any, ...]
    inputs: Inputs
    replay: Callable[[], None]
    returned: Any
    result: StepResult
    outcomes: Sequence[Outcome]
    numbers: torch.Tensor | None
    grads: Sequence[Sequence[torch.Tensor | None]]


class CapturedStep:
    """Takes the steps of an engine: `step(*batch)` is forward, backward and `engine.step()`.

    Args:
        steps: The engine.
        new_recorder: Creates what records micro-steps; None to run all of them eagerly.

    Attributes:
        returned: What the loss function returned for the last batch, detached.
    """

    def __init__(self, steps: Steps, new_recorder: Callable[[], Recorder] | None) -> None:
        self._steps, self._assembly = steps, steps.assembly
        self._new_recorder = new_recorder
        self._recorder: Recorder | None = None
        self._eager_windows = self._changes = 0
        self._recordings: dict[Kind, Recording] = {}
        self._settings: dict[str, Any] = {}
        self._rates = LearningRates(steps.windows, moves=bool(steps.assembly.settlement.schedulers))
        self.returned: Any = None

    def __call__(self, *batch: Any, samples: int | None = None) -> StepResult:
        """Take a micro-step; the last one of a window also steps the optimizers.

        Args:
            batch: Arguments of the loss function.
            samples: Number of samples, as in `Engine.backward`.

        Returns:
            The result, as from `Engine.step`.

        Raises:
            CaptureError: If the step cannot be recorded. It was not taken then.
        """
        self._steps.begin()
        kind = self._kind(samples) if self._may_record() else None
        if kind is None:
            return self._eagerly(batch, samples)
        key = (samples, *signature_of(batch))
        recording = self._recordings.get(kind)
        if recording is None:
            return self._recorded(kind, key, batch, samples)
        if recording.key != key:
            return self._eagerly(batch, samples)
        recording.inputs.write(batch)
        self._rates.write()
        recording.replay()
        self._count(kind, recording, samples)
        return self._handed_on(recording)

    @property
    def replays(self) -> bool:
        """Whether steps are replayed: the first ones run eagerly, and on a CPU all of them do."""
        return bool(self._recordings)

    def _kind(self, samples: int | None) -> Kind | None:
        """Return the kind of the next micro-step; None if it must run eagerly."""
        self._drop_if_changed()
        windows, observed = self._steps.windows, step_observer.active is not step_observer.NOBODY
        position = windows[0].micro_steps
        others = [each for each in self._assembly.windows if each not in windows]
        if (
            observed
            or not torch.is_grad_enabled()
            or any(each.micro_steps != position or each.true_grads for each in windows)
            or any(each.backwards for each in others)
            or (position and not self._continues(position, samples))
        ):
            return None
        closes = self._steps.closes()
        if closes and position + 1 != self._steps.accumulate:
            return None
        return Kind(position == 0, closes)

    def _continues(self, position: int, samples: int | None) -> bool:
        """Tell whether the open window is as recordings would have left it after `position`."""
        opening = self._recordings.get(Kind(opens=True, closes=False))
        return opening is not None and all(
            window.samples == position * (samples or 0)
            and all(p.grad is grad for p, grad in zip(window.params, grads, strict=True))
            for window, grads in zip(self._steps.windows, opening.grads, strict=True)
        )

    def _may_record(self) -> bool:
        return (
            self._new_recorder is not None
            and self._eager_windows >= WARM_UP
            and self._changes <= _MOST_CHANGES
        )

    def _drop_if_changed(self) -> None:
        """Drop the recordings if a setting is no longer as they have it."""
        now = settings_of(self._assembly, self._steps.windows)
        now["a loaded state"] = [self._steps.loads]
        if not self._recordings:
            self._settings = now
            return
        kept = self._settings.pop("a learning rate", None)
        rates = self._rates.fixed
        if now == self._settings and kept == rates:
            self._settings["a learning rate"] = kept
            return
        changed = [name for name, value in now.items() if value != self._settings[name]]
        self._recordings.clear()
        self._rates.forget()
        self._settings = now
        if not changed and not self._rates.move:
            self._rates.move = True
            return
        self._changes += 1
        if self._changes > _MOST_CHANGES:
            name = changed[0] if changed else "a learning rate of an optimizer that is not fused"
            warnings.warn(
                f"{name} has changed {self._changes} times since steps were captured, so steps run "
                "eagerly from now on",
                EngineWarning,
                stacklevel=4,
            )

    def _eagerly(self, batch: tuple[Any, ...], samples: int | None) -> StepResult:
        def run() -> tuple[Any, StepResult]:
            return self._steps.take(batch, samples)

        warms = self._new_recorder is not None and self._eager_windows < WARM_UP
        if warms and self._recorder is None and self._new_recorder is not None:
            self._recorder = self._new_recorder()
        returned, result = self._recorder.warm_up(run) if warms and self._recorder else run()
        self._eager_windows += result.closed
        self.returned = tree_map_only(torch.Tensor, torch.Tensor.detach, returned)
        return result

    def _recorded(
        self, kind: Kind, key: tuple[Any, ...], batch: tuple[Any, ...], samples: int | None
    ) -> StepResult:
        """Record a micro-step, which takes it."""
        steps, settlement = self._steps, self._assembly.settlement
        inputs, before = Inputs(batch), _HostState(steps)
        assert self._recorder is not None, "made when the first step ran"
        with settlement.held() as outcomes, self._rates.in_tensors():

            def run() -> tuple[Any, StepResult, torch.Tensor | None]:
                returned, result = steps.take(inputs.batch, samples)
                return returned, result, _stacked(outcomes, result)

            def undo() -> None:
                outcomes.clear()
                before.restore()

            replay, (returned, result, numbers) = self._recorder.record(run, undo)
        grads = [[p.grad for p in window.params] for window in steps.windows]
        self._settings["a learning rate"] = self._rates.fixed
        for outcome in outcomes:  # the norms in it name parameters in messages, and are overwritten
            outcome.windows = [
                WindowOutcome(each.optimizer, each.params, None, each.found_inf)
                for each in outcome.windows
            ]
        recording = Recording(
            key, inputs, replay, returned, result, list(outcomes), numbers,
            [] if kind.closes else grads,
        )  # fmt: skip
        self._recordings[kind] = recording
        return self._handed_on(recording)

    def _count(self, kind: Kind, recording: Recording, samples: int | None) -> None:
        """Do what the engine does on the host in a micro-step that was replayed."""
        for statistics in self._assembly.moving:
            statistics.replayed(is_saved=not kind.closes)
        if not kind.closes:
            scaled = bool(self._assembly.scales)
            for window, grads in zip(self._steps.windows, recording.grads, strict=True):
                window.replayed(grads, samples=samples, scaled=scaled)
            return
        for window in self._steps.windows:
            window.zero_grad()
        self._steps.steps += 1

    def _handed_on(self, recording: Recording) -> StepResult:
        """Return the result of a micro-step with its own copy of the numbers; settle them later."""
        self.returned = tree_map_only(
            torch.Tensor, lambda tensor: tensor.detach().clone(), recording.returned
        )
        if recording.numbers is None:
            return recording.result
        numbers, used = recording.numbers.clone(), 0
        for outcome in recording.outcomes:
            count = len(outcome.numbers)
            own = numbers[used : used + count]
            self._assembly.settlement.add(replace(outcome, step=self._steps.steps, numbers=own))
            used += count
        rest = iter(numbers[used:].unbind())
        results = [
            OptimizerStep(
                each.closed,
                each.has_gradients,
                *(None if number is None else next(rest) for number in each.numbers),
            )
            for each in recording.result.optimizers
        ]
        return StepResult(tuple(results))


def _stacked(outcomes: Sequence[Outcome], result: StepResult) -> torch.Tensor | None:
    """Return the numbers of outcomes and of a result as one fp32 tensor; None without numbers."""
    numbers = [number for outcome in outcomes for number in outcome.numbers]
    numbers += [
        number for each in result.optimizers for number in each.numbers if number is not None
    ]
    return torch.stack([number.float() for number in numbers]) if numbers else None


class _HostState:
    """What a failed recording leaves changed on the host: counters, windows and gradients."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._number = steps, steps.steps
        self._windows = [
            (window, window.micro_steps, window.samples, [p.grad for p in window.params])
            for window in steps.windows
        ]

    def restore(self) -> None:
        """Restore it."""
        self._steps.steps = self._number
        scaled = bool(self._steps.assembly.scales)
        for window, micro_steps, samples, grads in self._windows:
            window.zero_grad()
            for _ in range(micro_steps):
                window.replayed(grads, samples=None, scaled=scaled)
            window.samples, window.counts_samples = samples, bool(samples)
        for statistics in self._steps.assembly.moving:
            statistics.replayed(is_saved=any(count for _, count, _, _ in self._windows))
