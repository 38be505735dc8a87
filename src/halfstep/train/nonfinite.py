"""What becomes of a step whose loss is not finite: `on_nonfinite` of a config.

Under "stop" the loop looks at each log interval, which costs nothing, and ends the run once an
update was made with such a loss; where a loss scale skips the update there is nothing to end it
for. The other two ask the device before every update, whatever the recipe:

- "skip" leaves the step out. The running statistics of norm layers are put back too.
- "rollback" goes back to the newest checkpoint with all its weights finite, and on with the batch
  after the one that did it: batches between that checkpoint and here are not repeated, and the
  schedule goes on from where the checkpoint was.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from halfstep import step_observer
from halfstep.engine.statistics import RunningStatistics
from halfstep.train.processes import ALONE

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from halfstep.engine import Engine
    from halfstep.recipe import Recipe
    from halfstep.train.config import Config
    from halfstep.train.processes import Processes
    from halfstep.train.progress import Progress

MOST_IN_A_ROW = 20
"""Steps left out one after the other after which the weights, and not the batches, are to blame."""
MOST_ROLLBACKS = 3
"""Times that a run goes back before it is given up."""


def remedy(recipe: Recipe) -> str:
    """Return what to try after a loss that was not finite under `recipe`."""
    if recipe.overflows_early and recipe.scaling is None:
        return "a recipe that scales the loss (fp16 or o2), or a lower optimizer.lr"
    others = ", or recipe bf16" if recipe.overflows_early else ""
    return f"a lower optimizer.lr, a longer schedule.warmup, clip_norm=1{others}"


class NonFinite:
    """Watches the losses of one run.

    Args:
        engine: What trains.
        config: Says what to do.
        progress: Where what was left out is counted.
        processes: Those that decide together.
    """

    def __init__(
        self,
        engine: Engine,
        config: Config,
        progress: Progress,
        processes: Processes = ALONE,
    ) -> None:
        self._engine = engine
        self._processes = processes
        self._progress = progress
        self._rolls_back = config.on_nonfinite == "rollback"
        self._finite: torch.Tensor | None = None
        self._statistics: RunningStatistics | None = None
        if config.on_nonfinite != "stop":
            self._finite = torch.ones(
                (), dtype=torch.bool, device=next(engine.bare_model.parameters()).device
            )
            self._statistics = RunningStatistics(engine.bare_model)

    def guarding(self) -> AbstractContextManager[None]:
        """Keep the statistics of before the forward passes in it, those of compiled code too."""
        return self._statistics.step_going_on() if self._statistics else nullcontext()

    def add(self, loss: torch.Tensor) -> None:
        """Look at the loss of a micro-batch."""
        if self._finite is not None:
            self._finite &= loss.isfinite()

    def refuses(self) -> bool:
        """Tell whether the window that closes now may not be stepped; waits for the device."""
        return self._finite is not None and self._processes.any(not bool(self._finite))

    def keep(self) -> None:
        """End a window that was stepped."""
        self._progress.dropped_in_a_row = 0
        self._open()

    def drop(self) -> None:
        """Leave the window out as if it had never been."""
        for optimizer in self._engine.optimizers:
            step_observer.active.drops(optimizer)
        self._engine.zero_grad()
        if self._statistics is not None:
            self._statistics.settle(torch.ones(()))
        self._progress.dropped += 1
        self._progress.dropped_in_a_row += 1
        self._open()

    def is_hopeless(self) -> str | None:
        """Return why the run should end rather than leave out yet another window, or None."""
        progress = self._progress
        if self._rolls_back and progress.rollbacks >= MOST_ROLLBACKS:
            return (
                f"the run went back to a checkpoint {MOST_ROLLBACKS} times and the loss was not "
                f"finite again; try {remedy(self._engine.recipe)}"
            )
        if progress.dropped_in_a_row >= MOST_IN_A_ROW:
            return (
                f"the loss was not finite in {MOST_IN_A_ROW} steps in a row, which "
                "on_nonfinite=skip left out; try on_nonfinite=rollback, or "
                f"{remedy(self._engine.recipe)}"
            )
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what is known of the open window, on the CPU: another process may unpickle it."""
        saved = self._statistics.state_dict() if self._statistics else None
        return {
            "finite": self._finite is None or bool(self._finite),
            "statistics": None if saved is None else [tensor.cpu() for tensor in saved],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        if self._finite is not None and self._statistics is not None:
            self._finite.fill_(state["finite"])
            self._statistics.load_state_dict(state["statistics"])

    def close(self) -> None:
        """Take the hooks off the model."""
        if self._statistics is not None:
            self._statistics.close()

    def _open(self) -> None:
        if self._finite is not None and self._statistics is not None:
            self._finite.fill_(True)  # noqa: FBT003  (torch's signature)
            self._statistics.forget()
