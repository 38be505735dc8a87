"""What follows from a step: schedulers, the history of the loss scale, an error when it collapses.

It needs to know on the host what happened on the device. The answer is copied while the device
works on, and read at the start of the next step, when it has long arrived.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from halfstep.engine.misuse import refuse_double_schedule
from halfstep.techniques import LossScaleCollapse

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from torch.optim import Optimizer

    from halfstep.techniques import LossScaler


class HostCopy:
    """A copy of a small tensor on its way to the host.

    Args:
        values: 1-d tensor on any device.
    """

    def __init__(self, values: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()
            # Of the tensor's GPU, which need not be the current one.
            self._event.record(torch.cuda.current_stream(values.device))
        else:
            self._values = values.clone()

    def read(self) -> list[float]:
        """Wait for the copy and return it."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._values.tolist()
        return values


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one engine step left to be settled.

    Attributes:
        step: Number of the step, from 1.
        optimizers: Those whose window closed with gradients.
        found: Where in `copied` each of them has its found_inf; None when nothing was checked.
        scalers: Each updated loss scale, with the places of its found_inf and new value.
        copied: The numbers themselves, on their way.
        names: Says which parameters had non-finite gradients.
    """

    step: int
    optimizers: Sequence[Optimizer]
    found: Sequence[int | None]
    scalers: Sequence[tuple[Hashable, LossScaler, int, int]]
    copied: HostCopy | None
    names: Callable[[], list[str]]


class Settlement:
    """Carries out what follows from steps, one step later.

    Args:
        schedulers: Stepped once for each real step of the optimizer that they belong to.
        overflows_early: Whether the recipe has anything in fp16, so that another format may help.

    Raises:
        TypeError: If a scheduler is one that wants a metric.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], *, overflows_early: bool) -> None:
        for scheduler in schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise TypeError(
                    "ReduceLROnPlateau needs a metric, which the engine does not have; call "
                    "scheduler.step(metric) yourself after each validation"
                )
        self.schedulers = list(schedulers)
        self.skipped = 0
        self._left_at: list[tuple[object, int]] = []
        self._overflows_early = overflows_early
        self._pending: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        """Leave the outcome of a step to the next `settle`."""
        assert self._pending is None, "the step before was not settled"
        self._pending = outcome
        self._left_at = [_place(scheduler) for scheduler in self.schedulers]

    def settle(self) -> None:
        """Carry out what follows from the last step.

        Raises:
            LossScaleCollapse: If the loss scale cannot help any more.
            RuntimeError: If somebody else has stepped a scheduler since the last step.
        """
        outcome, self._pending = self._pending, None
        if outcome is None:
            return
        for scheduler, (rates_then, epoch_then) in zip(self.schedulers, self._left_at, strict=True):
            rates, epoch = _place(scheduler)
            # An earlier state may have been loaded, which is no step.
            if rates is not rates_then and (epoch > epoch_then or epoch == _UNCOUNTED):
                refuse_double_schedule(scheduler)
        values = outcome.copied.read() if outcome.copied else []
        stepped = []
        for optimizer, place in zip(outcome.optimizers, outcome.found, strict=True):
            if place is not None and values[place]:
                self.skipped += 1
            else:
                stepped.append(optimizer)
        for scheduler in self.schedulers:
            if any(scheduler.optimizer is optimizer for optimizer in stepped):
                scheduler.step()
        for loss_id, scaler, found, scale in outcome.scalers:
            reason = scaler.record(outcome.step, scale=values[scale], found_inf=bool(values[found]))
            if reason:
                remedy = ", or write recipe='bf16'" if self._overflows_early else ""
                raise LossScaleCollapse(_explain(loss_id, scaler, outcome, reason, remedy))


_UNCOUNTED = -1


def _place(scheduler: LRScheduler) -> tuple[object, int]:
    """Return what a step of a scheduler replaces, as there is no hook, and how far it has come."""
    # ChainedScheduler counts no epochs.
    return vars(scheduler).get("_last_lr"), vars(scheduler).get("last_epoch", _UNCOUNTED)


def _explain(
    loss_id: Hashable, scaler: LossScaler, outcome: Outcome, reason: str, remedy: str
) -> str:
    names = outcome.names()
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    which = "the loss scale" if loss_id is None else f"the scale of loss {loss_id!r}"
    return (
        f"{which} collapsed at step {outcome.step}, down to {scaler.history[-1].scale:g}: "
        f"{reason}. Last non-finite gradients: {shown or 'of a loss with a scale of its own'}. "
        + (
            "Look for inf or NaN in the inputs, the loss or the forward pass; lower the learning "
            f"rate{remedy}"
            if scaler.settings.dynamic
            else "A static scale cannot back off; write loss_scale='dynamic'"
        )
    )
