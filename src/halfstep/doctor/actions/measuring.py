"""Measures the numbers of each step, and starts the investigation of a bad step."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record.measured import NO_OPTIMIZER
from halfstep.doctor.replay.investigation import Investigation
from halfstep.doctor.signals.signal import Signal
from halfstep.doctor.signals.state.facts import learning_rate, parameters_of
from halfstep.doctor.signals.values.numbers import Series
from halfstep.doctor.tensors.summary import is_finite

if TYPE_CHECKING:
    import torch
    from torch.optim import Optimizer

    from halfstep.doctor.record import StepNumbers
    from halfstep.doctor.signals.watched import Watched
    from halfstep.doctor.tape.tape import Entry

SKIPS_WORTH_A_LOOK = (4, 16)
RECENT = 3


class Measuring(Signal):
    """Measures each step, and starts the investigation of bad steps.

    Attributes:
        series: Loss, gradient norm and loss scale of each step.
        recent: Number and calls of each of the latest iterations with a step.
        loss: The tensor that backward was last called on, without its loss scale.
        known_norm: The norm of the current step's gradients, if it is known already.
    """

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._registry, self._investigation = watched.registry, watched[Investigation]
        self._begin()
        self.loss: torch.Tensor | None = None
        self.known_norm: torch.Tensor | None = None
        self._checked = 0

    def _begin(self) -> None:
        self.series = Series(self._on_bad, whole=self.watched.settings.hold_back)
        self.recent: deque[tuple[int, list[Entry]]] = deque(maxlen=RECENT)
        self._has_own = False

    def take_own(self, number: int, gradients: list[torch.Tensor]) -> None:
        """Measure a step of a loop that has no optimizer.

        Args:
            number: Number of the step, from 0.
            gradients: The gradients of its weights.
        """
        self._has_own = True
        self.recent.append((number, self.watched.tape.snapshot()))
        self.series.take(
            number,
            NO_OPTIMIZER,
            learning_rate=math.nan,
            loss=self.loss,
            gradients=gradients,
            scale=None,
            skipped=False,
        )

    def take(
        self,
        optimizer: Optimizer,
        gradients: list[torch.Tensor] | None,
        *,
        skipped: bool,
        found_inf: torch.Tensor | None,
        at_once: bool = False,
    ) -> list[torch.Tensor]:
        """Measure a step.

        Args:
            optimizer: The optimizer, which must be registered.
            gradients: The optimizer's gradients; None for a skipped step.
            skipped: Whether the step is already known to be skipped.
            found_inf: Scalar, nonzero if the optimizer skips the step on the device.
            at_once: Whether to wait for an accelerator, and investigate a bad step before it is
                applied.

        Returns:
            The loss and the gradient norm as tensors on the device, without those that are None.
        """
        if self._has_own:  # The loop took gradients before it had an optimizer.
            self._begin()
        iteration = self.watched.grammar.iteration
        if not self.recent or self.recent[-1][0] != iteration:
            self.recent.append((iteration, self.watched.tape.snapshot()))
        return self.series.take(
            iteration,
            self._registry.optimizers.number(optimizer),
            learning_rate=learning_rate(optimizer),
            loss=self.loss,
            gradients=gradients,
            norm=self.known_norm,
            scale=self._registry.optimizer(optimizer).scale,
            skipped=skipped,
            found_inf=found_inf,
            at_once=at_once and not self._investigation.done,
        )

    def on_skip(self, optimizer: Optimizer, found_inf: torch.Tensor | None) -> None:
        """Measure a step that was left out."""
        self._registry.note_reached(optimizer)
        self.take(optimizer, None, skipped=True, found_inf=found_inf)

    @property
    def has_new_trouble(self) -> bool:
        """Whether a step was found to be bad since the last call of `stepped`."""
        return self._checked != self.series.troubles

    def stepped(self, optimizer: Optimizer) -> None:
        """Check the parameters of an optimizer that has stepped."""
        self._checked = self.series.troubles
        self.series.spoiled |= _has_bad(optimizer)

    def _on_bad(self, step: StepNumbers, is_late: bool) -> None:
        if step is self.series.first_bad:
            optimizers = self._registry.optimizers.alive()
            self.series.bad_owners = tuple(
                [number for number, each in optimizers.items() if _has_bad(each)]
            )
        entries = next((tape for number, tape in self.recent if number == step.iteration), None)
        run = self.series.run_of_skips
        if entries is None:
            return
        if not step.skipped:
            why = "loss or gradients are not finite"
        elif step.loss is not None and not abs(step.loss) < float("inf"):
            why = "the loss is not finite"
        elif step.scale is None:
            why = "gradients are not finite, and there is no loss scale to lower"
        elif run in SKIPS_WORTH_A_LOOK:
            why = f"{run} steps in a row were skipped"
        elif step.scale is not None and step.scale < 1:
            why = "the loss scale fell below 1"
        else:
            return
        optimizer = self._registry.optimizers.alive().get(step.optimizer)
        moved = parameters_of(optimizer) if optimizer is not None else []
        self._investigation.step(
            entries,
            self._registry.names(),
            step.iteration,
            why,
            scale=step.scale,
            moved=moved,
            is_late=is_late,
            is_skipped=step.skipped,
        )

    def freeze(self) -> dict[str, Any]:
        """Return the numbers of all steps."""
        if self._has_own:
            self.series.spoiled |= not all(map(is_finite, self._registry.loose))
        return {"numbers": self.series.freeze()}


def _has_bad(optimizer: Optimizer) -> bool:
    """Return whether a parameter of an optimizer contains inf or NaN; waits for the device."""
    return not all(map(is_finite, parameters_of(optimizer)))
