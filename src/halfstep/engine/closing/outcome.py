"""Work that follows a step: schedulers, the history and the collapse of a scale, skips in a row.

This work needs numbers from the device. They are copied to the host in the background, and the work
is done at the start of a later step.

If there are schedulers, the next step waits for the numbers of the step before, because it needs
their learning rates: in an ordinary step, the engine waits for nothing else. Without schedulers no
step waits, unless it is `FURTHEST_AHEAD` steps ahead: the work is done once the numbers are there.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from halfstep.engine.closing.host_copy import HostCopy
from halfstep.engine.closing.nonfinite import SkipsInARow, not_finite, shortened, warn_skipped
from halfstep.engine.processes.shards import local
from halfstep.kernels import gradients
from halfstep.mechanisms.loss_scale.scaler import LossScaleCollapse

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from halfstep.engine.scales import ScaleUpdate
    from halfstep.engine.window.window import Window
    from halfstep.mechanisms.loss_scale.scaler import LossScaler


FURTHEST_AHEAD = 16
"""Number of steps by which the host may be ahead of the numbers that it has read."""


class WindowOutcome(NamedTuple):
    """The outcome of a closed window.

    Attributes:
        optimizer: The optimizer of the window.
        params: The parameters that had a gradient.
        each_norm: 2-norm of each of these gradients, on the device; None if not computed.
        found_inf: Index of the window's found_inf in `Outcome.numbers`; None if not checked.
    """

    optimizer: Optimizer
    params: Sequence[torch.Tensor]
    each_norm: torch.Tensor | None
    found_inf: int | None


class ScaleOutcome(NamedTuple):
    """The outcome of a loss scale: its key, its scaler, and two indices into `Outcome.numbers`.

    The indices are those of the scale's found_inf and of its new value.
    """

    loss_id: Hashable
    scaler: LossScaler
    found_inf: int
    scale: int


@dataclass(slots=True, eq=False)
class Outcome:
    """The outcome of one engine step, which `Settlement.settle` processes later.

    Attributes:
        step: Number of the step, from 1.
        windows: Windows that closed with gradients.
        scales: Loss scales that were updated.
        numbers: The values that `windows` and `scales` refer to by index (from 0), on the device.
        copy: Their copy to the host; None before it is started, and if there are no numbers.
    """

    step: int
    windows: Sequence[WindowOutcome]
    scales: Sequence[ScaleOutcome]
    numbers: Sequence[torch.Tensor] | torch.Tensor
    copy: HostCopy | None = None

    def send(self) -> None:
        """Start to copy the numbers to the host."""
        if len(self.numbers):
            self.copy = HostCopy(self.numbers)
        self.numbers = ()

    @property
    def is_known(self) -> bool:
        """Whether `read` returns without waiting."""
        return self.copy is None or self.copy.has_arrived

    def read(self) -> list[float]:
        """Wait for the copy of the numbers, and return them."""
        return self.copy.read() if self.copy else []

    def skipped(self, numbers: Sequence[float]) -> list[WindowOutcome]:
        """Return the windows whose optimizer skipped the step; `numbers` come from `read`."""
        return [w for w in self.windows if w.found_inf is not None and numbers[w.found_inf]]


def outcome_of(step: int, closed: Sequence[Window], updates: Sequence[ScaleUpdate]) -> Outcome:
    """Return the outcome of a step.

    Args:
        step: Number of the step, from 1.
        closed: Windows that closed with gradients.
        updates: Loss scales that the step has updated.
    """
    numbers: list[torch.Tensor] = []

    def place_of(number: torch.Tensor) -> int:
        numbers.append(number)
        return len(numbers) - 1

    windows = [
        WindowOutcome(
            window.optimizer,
            window.reached,
            window.each_norm,
            None if window.found_inf is None else place_of(window.found_inf),
        )
        for window in closed
    ]
    scales = [
        ScaleOutcome(loss_id, scaler, place_of(found_inf), place_of(scaler.scale))
        for loss_id, scaler, found_inf in updates
    ]
    return Outcome(step, windows, scales, numbers)


class Settlement:
    """Does the work that follows each step, in a later step.

    Args:
        schedulers: Each is stepped once after every step of its optimizer that was not skipped.
        names: Names of the parameters, for error messages.
        overflows_early: Whether the recipe uses fp16, so that the error message suggests bf16.
        scales: Whether there is a loss scale, whose collapse ends skips in a row.

    Attributes:
        schedulers: List of the schedulers.
        names: Names of the parameters.
        settled_skips: Number of skipped optimizer steps, without steps that are not yet settled.
        in_a_row: The consecutive skipped steps, also without steps that are not yet settled.
    """

    def __init__(
        self,
        schedulers: Sequence[LRScheduler],
        names: Mapping[torch.Tensor, str],
        *,
        overflows_early: bool,
        scales: bool,
    ) -> None:
        self.schedulers = list(schedulers)
        self.settled_skips = 0
        self.in_a_row = SkipsInARow(warns=not scales)
        self.names = names
        self._left_at: list[tuple[object, int]] = []
        self._overflows_early = overflows_early
        self._pending: deque[Outcome] = deque()
        self._held: list[Outcome] | None = None

    @property
    def skipped(self) -> int:
        """Number of skipped optimizer steps, including the last step; waits for the device."""
        return self.settled_skips + sum(
            len(outcome.skipped(outcome.read())) for outcome in self._pending
        )

    @property
    def unsettled(self) -> int:
        """Number of steps that are not yet settled."""
        return len(self._pending)

    def add(self, outcome: Outcome) -> None:
        """Store the outcome of a step until it is settled, and start to copy its numbers."""
        if self._held is not None:
            self._held.append(outcome)
            return
        outcome.send()
        self._pending.append(outcome)
        self._left_at = [_place(scheduler) for scheduler in self.schedulers]

    @contextmanager
    def held(self) -> Iterator[list[Outcome]]:
        """Put outcomes into a list instead, while steps are recorded and not yet taken."""
        held: list[Outcome] = []
        self._held = held
        try:
            yield held
        finally:
            self._held = None

    @property
    def holds(self) -> bool:
        """Whether the context `held` is entered."""
        return self._held is not None

    def catch_up(self) -> None:
        """Do the work of the steps whose numbers are there; see `settle`."""
        pending = self._pending
        while pending and (
            self.schedulers or pending[0].is_known or len(pending) >= FURTHEST_AHEAD
        ):
            self._settle(pending.popleft())

    def settle(self) -> None:
        """Do the work that follows all steps so far, unless it is done already.

        Raises:
            LossScaleCollapse: If a loss scale collapsed in one of the steps.
            RuntimeError: If other code has stepped a scheduler since the last step.
        """
        while self._pending:
            self._settle(self._pending.popleft())

    def _settle(self, outcome: Outcome) -> None:
        numbers, skipped = outcome.read(), []
        if outcome.copy is not None:  # else the gradients were finite, or not checked
            skipped = [window.optimizer for window in outcome.skipped(numbers)]
            self.settled_skips += len(skipped)
        self._step_schedulers(outcome, skipped)
        for window in outcome.windows:
            if self.in_a_row.add(window.optimizer, skipped=window.optimizer in skipped):
                self._warn(outcome.step, window)
        for loss_id, scaler, found_inf, scale in outcome.scales:
            reason = scaler.record(
                outcome.step, scale=numbers[scale], found_inf=bool(numbers[found_inf])
            )
            if reason:
                raise LossScaleCollapse(self._explain(loss_id, scaler, outcome, reason))

    def _step_schedulers(self, outcome: Outcome, skipped: Sequence[Optimizer]) -> None:
        """Step the schedulers of the optimizers that stepped.

        Raises:
            RuntimeError: If other code has stepped a scheduler since the last step.
        """
        for scheduler, (rates_then, epoch_then) in zip(self.schedulers, self._left_at, strict=True):
            rates, epoch = _place(scheduler)
            # A smaller epoch means that an earlier state was loaded, which is not a step.
            if rates is not rates_then and (epoch > epoch_then or epoch == _UNCOUNTED):
                refuse_double_schedule(scheduler)
        for scheduler in self.schedulers:
            for window in outcome.windows:
                if window.optimizer is scheduler.optimizer and window.optimizer not in skipped:
                    scheduler.step()

    def _explain(self, loss_id: Hashable, scaler: LossScaler, outcome: Outcome, reason: str) -> str:
        shown = shortened(self._not_finite(outcome.windows))
        which = "the loss scale" if loss_id is None else f"the scale of loss {loss_id!r}"
        remedy = ", or write recipe='bf16'" if self._overflows_early else ""
        return (
            f"{which} collapsed at step {outcome.step}: {reason}. "
            f"Gradients not finite in that step: {shown or 'of a loss with a scale of its own'}. "
            + (
                "Look for inf or NaN in the inputs, the loss or the forward pass; lower the "
                f"learning rate{remedy}"
                if scaler.settings.dynamic
                else "A static scale cannot back off; write loss_scale='dynamic'"
            )
        )

    def _not_finite(self, windows: Sequence[WindowOutcome]) -> list[str]:
        """Return the names of the parameters whose gradient was non-finite."""
        return [
            name
            for window in windows
            if window.each_norm is not None
            for name in not_finite(window.params, window.each_norm, self.names)
        ]

    def _warn(self, step: int, window: WindowOutcome) -> None:
        """Warn of a few skipped steps in a row; if the weights are the cause, name them."""
        with torch.no_grad():
            norms = gradients.norms([local(param) for param in window.params])
        warn_skipped(
            type(window.optimizer).__name__,
            step,
            in_gradients=self._not_finite([window]),
            in_weights=not_finite(window.params, norms, self.names),
        )


def refuse_schedulers(schedulers: Sequence[LRScheduler], optimizers: Sequence[Optimizer]) -> None:
    """Refuse schedulers that the engine cannot step.

    Raises:
        TypeError: If a scheduler needs a metric.
        ValueError: If a scheduler belongs to an optimizer that is not in `optimizers`.
    """
    for scheduler in schedulers:
        if isinstance(scheduler, ReduceLROnPlateau):
            raise TypeError(
                "ReduceLROnPlateau needs a metric, which the engine does not have; call "
                "scheduler.step(metric) yourself after each validation"
            )
        if all(scheduler.optimizer is not optimizer for optimizer in optimizers):
            raise ValueError(
                f"{type(scheduler).__name__} belongs to an optimizer that this engine does not "
                "own, and would never step; build it over one of the engine's optimizers"
            )


def refuse_double_schedule(scheduler: LRScheduler) -> None:
    """Raise the error for a scheduler that the loop steps too: it would run twice as fast."""
    name = type(scheduler).__name__
    raise RuntimeError(
        f"{name}.step() was called directly, but the engine steps this scheduler after each "
        f"optimizer step that is not skipped; delete the line, or leave scheduler={name}(...) out "
        "of Engine(...)"
    )


_UNCOUNTED = -1


def _place(scheduler: LRScheduler) -> tuple[object, int]:
    """Return a scheduler's list of learning rates and its epoch, to detect a step of it later.

    Schedulers have no step hooks. Each step replaces the list.
    """
    # ChainedScheduler has no `last_epoch`.
    return vars(scheduler).get("_last_lr"), vars(scheduler).get("last_epoch", _UNCOUNTED)
