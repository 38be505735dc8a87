"""Finds losses that were not finite, and ends a run whose weights were updated with one.

It looks at each log interval, which costs nothing. Where a loss scale skips the update, there is
nothing to end the run for. What leaves such steps out beforehand is in `nonfinite`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.train.observers.nonfinite import remedy
from halfstep.train.processes.processes import ALONE
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.engine import StepResult
    from halfstep.recipe import Recipe
    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.progress import Progress
    from halfstep.train.store.checkpoint import State


class NonFiniteSteps(Observer):
    """Finds the first step whose loss was not finite.

    Args:
        device: Where losses are.
        progress: Is told of the step, and ended where the update was made.
        recipe: Under which the run trains.
        processes: Those that train together; a loss of any of them counts.
    """

    name = "nonfinite_steps"

    def __init__(
        self,
        device: torch.device,
        progress: Progress,
        recipe: Recipe,
        processes: Processes = ALONE,
    ) -> None:
        self._progress = progress
        self._recipe = recipe
        self._processes = processes
        self._windows: list[tuple[int, torch.Tensor, StepResult | None]] = []
        self._before: list[list[int | None]] = []
        self._device = device
        self._open_window()

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Look at the loss of a micro-batch, on the device."""
        self._finite &= loss.isfinite()

    def stepped(self, step: int, result: StepResult | None) -> None:
        """End a step, to which the micro-batches since the last belong."""
        self._windows.append((step, self._finite, result))
        self._open_window()

    def interval(self) -> dict[str, float]:
        """Wait for the device, and end the run if the weights were updated with such a loss."""
        nonfinite, poisoned = self._bad_steps()
        self._windows, self._before = [], []
        if self._progress.first_nonfinite_step is None:
            self._progress.first_nonfinite_step = nonfinite
        if poisoned is not None:
            self._progress.stop(
                "nonfinite",
                f"the loss was not finite at step {poisoned}, and the weights were updated; try "
                f"{remedy(self._recipe)}",
            )
        return {}

    def state_dict(self) -> State:
        """Return what is known of the interval; waits for the device."""
        return {
            "windows": len(self._windows),
            "bad": list(self._bad_steps()),
            "finite": bool(self._finite),
        }

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` returned."""
        self._open_window()
        self._windows = []
        self._before = [state["bad"]] if state["windows"] else []
        self._finite &= state["finite"]

    def redistributed(self, states: Sequence[State], *, first: bool) -> State | None:
        """Give every process what all of them know."""
        return {**states[0], "finite": all(each["finite"] for each in states)}

    def _bad_steps(self) -> tuple[int | None, int | None]:
        """Return the first step whose loss was not finite, and the first that was still made."""
        finite = (
            torch.stack([window for _, window, _ in self._windows]).tolist()
            if self._windows
            else []
        )
        if self._windows:
            heard = self._processes.numbers(finite)
            finite = [all(of_window) for of_window in zip(*heard, strict=True)]
        bad = [each for each, is_finite in zip(self._windows, finite, strict=True) if not is_finite]
        poisoned = next((step for step, _, result in bad if result and result.stepped), None)
        nonfinite = bad[0][0] if bad else None
        for earlier in self._before:
            nonfinite, poisoned = earlier[0] or nonfinite, earlier[1] or poisoned
        return nonfinite, poisoned

    def _open_window(self) -> None:
        self._finite = torch.ones((), dtype=torch.bool, device=self._device)
