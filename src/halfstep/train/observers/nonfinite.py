"""Handles non-finite steps, as the field `on_nonfinite` of a config says.

With "stop", the engine applies every step, and `NonFiniteSteps` ends the run afterwards. With
"skip" and "rollback", the engine skips steps with non-finite gradients. Before that, `NonFinite`
vetoes steps with a non-finite loss: such a step must not lower a loss scale, and its gradients may
be finite. After a step that was vetoed, or skipped without a loss scale:

- "skip" continues.
- "rollback" loads the newest checkpoint and continues with the next batch. Batches since that
  checkpoint are not repeated; the schedule continues from the checkpoint's position.
  `veto_checkpoint` prevents checkpoints of non-finite weights, so that a rollback can help.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

import torch

from halfstep.engine.processes.shards import local
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
"""Number of consecutive skipped steps that ends a run: the weights are then the likely cause."""
MOST_ROLLBACKS = 3
"""Number of rollbacks after which the next non-finite loss ends the run."""


def remedy(recipe: Recipe) -> str:
    """Return advice for a run under `recipe` that had a non-finite loss."""
    if recipe.overflows_early and recipe.scaling is None:
        return "a recipe that scales the loss (fp16 or o2), or a lower optimizer.lr"
    if recipe.overflows_early:
        return "a lower optimizer.lr, a longer schedule.warmup, clip_norm=1, or recipe bf16"
    return "a lower optimizer.lr, a longer schedule.warmup, or clip_norm=1"


class NonFinite(Observer):
    """Vetoes the steps that have a non-finite loss; after a skipped step, rolls back if configured.

    A step that the engine skips under a loss scale does not count: the scale is still too high.
    """

    name = "nonfinite"

    def __init__(self, training: Training) -> None:
        self._training = training
        self._rolls_back = training.config.on_nonfinite == "rollback"
        self._finite = torch.ones((), dtype=torch.bool, device=training.setup.device)
        self._scales = training.setup.engine.recipe.scaling is not None
        self._refused = False
        self._in_a_row = 0

    def micro_batch(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        self._finite &= loss.isfinite()

    def veto(self) -> bool:
        """Skip the step if a loss of its window is non-finite on any process; reads the device."""
        self._refused = self._training.processes.any(not bool(self._finite))
        return self._refused

    def stepped(self, step: int, result: StepResult | None) -> None:
        self._finite.fill_(True)  # noqa: FBT003  (torch's signature)

    def step_done(self, result: StepResult | None) -> None:
        """Roll back or end the run, if necessary, after a step that was not finite."""
        by_engine = result is not None and not self._scales and result.skipped
        if self._refused or by_engine:
            self._in_a_row += 1
            self._leave_behind()
        elif result is not None:
            self._in_a_row = 0

    def veto_checkpoint(self) -> bool:
        """With "rollback", refuse a checkpoint of non-finite weights, and roll back or end the run.

        Waits for the device.
        """
        if not self._rolls_back or self._weights_are_finite():
            return False
        self._leave_behind()
        return True

    def state_dict(self) -> State:
        return {"finite": bool(self._finite), "in_a_row": self._in_a_row}

    def load_state_dict(self, state: State) -> None:
        self._finite.fill_(state["finite"])
        self._in_a_row = state.get("in_a_row", 0)

    def redistributed(self, states: Sequence[State], *, first: bool) -> State | None:
        return {**states[0], "finite": all(state["finite"] for state in states)}

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
        """Return why the run should end instead of skipping another step, or None."""
        progress, recipe = self._training.progress, self._training.setup.engine.recipe
        if self._rolls_back and progress.rollbacks >= MOST_ROLLBACKS:
            return (
                f"the loss was not finite again after {MOST_ROLLBACKS} returns to a checkpoint; "
                f"try {remedy(recipe)}"
            )
        if self._in_a_row >= MOST_IN_A_ROW:
            return (
                f"the loss or gradients were not finite in {MOST_IN_A_ROW} steps in a row, and "
                "on_nonfinite=skip skipped them; try on_nonfinite=rollback, or "
                f"{remedy(recipe)}"
            )
        return None

    def _weights_are_finite(self) -> bool:
        """Tell whether weights and buffers are finite on all processes; waits for the device."""
        tensors = map(local, self._training.setup.engine.bare_model.state_dict().values())
        finite = all(
            bool(tensor.isfinite().all()) for tensor in tensors if tensor.is_floating_point()
        )
        return not self._training.processes.any(not finite)


class NonFiniteSteps(Observer):
    """Finds the first step with a non-finite loss; ends a run whose optimizer applied such a step.

    It checks the losses of all processes at each log interval, when the run waits for the device
    anyway. A step that the loss scale skipped does not end the run.
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
        """Wait for the device; end the run if the weights were updated with a non-finite loss."""
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
        """Return the findings of the interval so far; waits for the device."""
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
        return {**states[0], "finite": all(state["finite"] for state in states)}

    def _bad_steps(self) -> tuple[int | None, int | None]:
        """Return the first step with a non-finite loss, and the first of these that was applied."""
        finite = []
        if self._windows:
            own = _are_finite([losses for _, losses, _ in self._windows])
            finite = [all(flags) for flags in zip(*self._processes.numbers(own), strict=True)]
        bad = [
            window for window, is_finite in zip(self._windows, finite, strict=True) if not is_finite
        ]
        poisoned = next((step for step, _, result in bad if result and result.stepped), None)
        nonfinite = bad[0][0] if bad else None
        for earlier in self._before:
            nonfinite, poisoned = earlier[0] or nonfinite, earlier[1] or poisoned
        return nonfinite, poisoned


def _are_finite(windows: Sequence[Sequence[torch.Tensor]]) -> list[bool]:
    """Read the losses of windows from the device; return for each window whether all are finite."""
    losses = [loss for window in windows for loss in window]
    values = torch.stack(losses).tolist() if losses else []
    if all(map(math.isfinite, values)):
        return [True] * len(windows)
    finite = iter(map(math.isfinite, values))
    return [all(list(islice(finite, len(window)))) for window in windows]
