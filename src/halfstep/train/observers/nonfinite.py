"""What becomes of a step whose loss is not finite: `on_nonfinite` of a config.

Under "stop" there is no guard, and `NonFiniteSteps` ends the run. The other two, `NonFinite`, ask
the device before every update, whatever the recipe:

- "skip" leaves the step out.
- "rollback" goes back to the newest checkpoint with all its weights finite, and on with the batch
  after the one that did it: batches between that checkpoint and here are not repeated, and the
  schedule goes on from where the checkpoint was.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

import torch

from halfstep.engine.parallel.shards import local
from halfstep.train.processes.processes import ALONE
from halfstep.train.run import restore
from halfstep.train.run.observer import Observer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.engine import StepResult
    from halfstep.recipe import Recipe
    from halfstep.train.processes.processes import Processes
    from halfstep.train.run.progress import Progress
    from halfstep.train.run.training import Training
    from halfstep.train.store.checkpoint import State

MOST_IN_A_ROW = 20
"""Steps left out one after the other after which the weights, and not the batches, are to blame."""
MOST_ROLLBACKS = 3
"""Times that a run goes back before it is given up."""


def remedy(recipe: Recipe) -> str:
    """Return what to try after a loss that was not finite under `recipe`."""
    if recipe.overflows_early and recipe.scaling is None:
        return "a recipe that scales the loss (fp16 or o2), or a lower optimizer.lr"
    if recipe.overflows_early:
        return "a lower optimizer.lr, a longer schedule.warmup, clip_norm=1, or recipe bf16"
    return "a lower optimizer.lr, a longer schedule.warmup, or clip_norm=1"


class NonFinite(Observer):
    """Leaves out the steps of one run whose loss was not finite."""

    name = "nonfinite"

    def __init__(self, training: Training) -> None:
        self._training = training
        self._rolls_back = training.config.on_nonfinite == "rollback"
        self._finite = torch.ones((), dtype=torch.bool, device=training.setup.device)
        self._refused = False

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self._finite &= loss.isfinite()

    def veto(self) -> bool:
        """Tell whether the window that closes now may not be stepped; waits for the device."""
        self._refused = self._training.processes.any(not bool(self._finite))
        return self._refused

    def stepped(self, step: int, result: StepResult | None) -> None:
        self._finite.fill_(True)  # noqa: FBT003  (torch's signature)

    def step_done(self, result: StepResult | None) -> None:
        """After a step that was left out for its loss, go back if asked to, or give up."""
        if self._refused:
            self._leave_behind()

    def veto_checkpoint(self) -> bool:
        """Refuse weights that are not finite, and leave them behind; waits for the device."""
        if not self._rolls_back or self._weights_are_finite():
            return False
        self._leave_behind()
        return True

    def state_dict(self) -> State:
        return {"finite": bool(self._finite)}

    def load_state_dict(self, state: State) -> None:
        self._finite.fill_(state["finite"])

    def redistributed(self, states: Sequence[State], *, first: bool) -> State | None:
        return {"finite": all(each["finite"] for each in states)}

    def _leave_behind(self) -> None:
        progress = self._training.progress
        if progress.first_nonfinite_step is None:
            progress.first_nonfinite_step = self._training.step
        hopeless = self._is_hopeless()
        if hopeless:
            progress.stop("nonfinite", hopeless)
        elif self._rolls_back:
            restore.roll_back(self._training)

    def _is_hopeless(self) -> str | None:
        """Return why the run should end rather than leave out yet another window, or None."""
        progress, recipe = self._training.progress, self._training.setup.engine.recipe
        if self._rolls_back and progress.rollbacks >= MOST_ROLLBACKS:
            return (
                f"the loss was not finite again after {MOST_ROLLBACKS} returns to a checkpoint; "
                f"try {remedy(recipe)}"
            )
        if progress.dropped_in_a_row >= MOST_IN_A_ROW:
            return (
                f"the loss was not finite in {MOST_IN_A_ROW} steps in a row, and "
                "on_nonfinite=skip skipped them; try on_nonfinite=rollback, or "
                f"{remedy(recipe)}"
            )
        return None

    def _weights_are_finite(self) -> bool:
        """Tell whether a checkpoint made now could be gone back to; waits for the device."""
        tensors = map(local, self._training.setup.engine.bare_model.state_dict().values())
        finite = all(bool(each.isfinite().all()) for each in tensors if each.is_floating_point())
        return not self._training.processes.any(not finite)


class NonFiniteSteps(Observer):
    """Finds the first step whose loss was not finite, and ends a run that was updated with one.

    It looks at each log interval, which costs nothing, at the losses of all processes. Where a loss
    scale skips the update, there is nothing to end the run for.
    """

    name = "nonfinite_steps"

    def __init__(
        self, device: torch.device, progress: Progress, recipe: Recipe, processes: Processes = ALONE
    ) -> None:
        self._progress = progress
        self._recipe = recipe
        self._processes = processes
        self._windows: list[tuple[int, list[torch.Tensor], StepResult | None]] = []
        self._before: list[list[int | None]] = []
        self._losses: list[torch.Tensor] = []  # of the open window
        self._bad_loss = torch.full((), torch.nan, device=device)

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self._losses.append(loss)

    def stepped(self, step: int, result: StepResult | None) -> None:
        self._windows.append((step, self._losses, result and result.without_norms()))
        self._losses = []

    def interval(self) -> dict[str, float]:
        """Wait for the device, and end the run if the weights were updated with such a loss."""
        nonfinite, poisoned = self._bad_steps()
        self._windows, self._before = [], []
        if self._progress.first_nonfinite_step is None:
            self._progress.first_nonfinite_step = nonfinite
        if poisoned is not None:
            self._progress.stop(
                "nonfinite",
                f"the loss was not finite at step {poisoned}, and the optimizer still applied this "
                f"step; try {remedy(self._recipe)}",
            )
        return {}

    def state_dict(self) -> State:
        """Return what is known of the interval; waits for the device."""
        return {
            "windows": len(self._windows),
            "bad": list(self._bad_steps()),
            "finite": all(_are_finite([self._losses])),
        }

    def load_state_dict(self, state: State) -> None:
        self._losses = [] if state["finite"] else [self._bad_loss]
        self._windows = []
        self._before = [state["bad"]] if state["windows"] else []

    def redistributed(self, states: Sequence[State], *, first: bool) -> State | None:
        return {**states[0], "finite": all(each["finite"] for each in states)}

    def _bad_steps(self) -> tuple[int | None, int | None]:
        """Return the first step whose loss was not finite, and the first that was still made."""
        finite = []
        if self._windows:
            own = _are_finite([losses for _, losses, _ in self._windows])
            finite = [all(each) for each in zip(*self._processes.numbers(own), strict=True)]
        bad = [each for each, is_finite in zip(self._windows, finite, strict=True) if not is_finite]
        poisoned = next((step for step, _, result in bad if result and result.stepped), None)
        nonfinite = bad[0][0] if bad else None
        for earlier in self._before:
            nonfinite, poisoned = earlier[0] or nonfinite, earlier[1] or poisoned
        return nonfinite, poisoned


def _are_finite(windows: Sequence[Sequence[torch.Tensor]]) -> list[bool]:
    """Wait for the losses of windows; return of each whether all of them are finite."""
    losses = [loss for window in windows for loss in window]
    values = torch.stack(losses).tolist() if losses else []
    if all(map(math.isfinite, values)):
        return [True] * len(windows)
    finite = iter(map(math.isfinite, values))
    return [all(list(islice(finite, len(window)))) for window in windows]
