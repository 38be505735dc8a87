"""Marks between the parts of a training step: events on a GPU, times of the clock on a CPU.

The measurement never waits for a GPU. On a GPU, a part lasts from the moment when the GPU has
finished the previous part to the moment when it has finished this part. So if the GPU waits for the
host, this time belongs to the part that the host launched too late.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.accelerators import recorded_event

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.engine import Engine, StepResult

PARTS = (
    "data_wait",
    "prepare",
    "forward",
    "backward",
    "unscale_clip",
    "optimizer",
    "rest",
)
"""The parts of a step, in order."""

Seconds = dict[str, float]
"""The time of each part of one step, in seconds."""


def total(step: Seconds) -> float:
    """Return the time of a whole step."""
    return sum(step.values())


class Marks:
    """Records the ends of the parts of steps.

    Args:
        device: The device of the steps.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: list[list[tuple[str, Any]]] = [[]]
        self._start = self._now()

    def mark(self, part: str) -> None:
        """Assign the time since the last mark to `part`."""
        self._steps[-1].append((part, self._now()))

    def end_step(self) -> None:
        """End the current step; later marks belong to the next step."""
        self._steps.append([])

    def seconds(self) -> list[Seconds]:
        """Return the times of every ended step; the times of a repeated part are added."""
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        steps = []
        before = self._start
        for marks in self._steps[:-1]:
            taken = dict.fromkeys(PARTS, 0.0)
            for part, now in marks:
                taken[part] += _between(before, now)
                before = now
            steps.append(taken)
        return steps

    def _now(self) -> Any:
        if self._device.type == "cpu":
            return time.perf_counter()
        return recorded_event(self._device, timed=True)


def _between(before: Any, now: Any) -> float:
    return float(now - before) if isinstance(now, float) else before.elapsed_time(now) / 1000


@contextmanager
def marked(engine: Engine, marks: Marks) -> Iterator[None]:
    """Mark the parts inside an engine's calls during the block, then restore the engine.

    The time before `engine.backward` counts as forward. In `engine.step`, the time before the
    optimizer's own step counts as unscaling and clipping, and the time after it as rest.
    """
    plain, plain_step = engine.backward, engine.step
    unscaled = False

    def backward(*arguments: Any, **named: Any) -> None:
        nonlocal unscaled
        marks.mark("forward")
        plain(*arguments, **named)
        marks.mark("backward")
        unscaled = False

    def step(*arguments: Any, **named: Any) -> StepResult:
        result = plain_step(*arguments, **named)
        marks.mark("rest")
        return result

    def before_step(*_: Any) -> None:
        # A recipe may call the optimizer several times, each time for some of the parameters.
        nonlocal unscaled
        marks.mark("optimizer" if unscaled else "unscale_clip")
        unscaled = True

    def after_step(*_: Any) -> None:
        marks.mark("optimizer")

    hooks = [optimizer.register_step_pre_hook(before_step) for optimizer in engine.optimizers]
    hooks += [optimizer.register_step_post_hook(after_step) for optimizer in engine.optimizers]
    vars(engine).update(backward=backward, step=step)
    try:
        yield
    finally:
        del vars(engine)["backward"], vars(engine)["step"]
        for hook in hooks:
            hook.remove()
