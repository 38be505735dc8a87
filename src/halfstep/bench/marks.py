"""Marks between the parts of a training step: events on a GPU, the clock on a CPU.

On a GPU nothing is waited for while it is measured. A part lasts from the moment when the GPU had
done what came before it to the moment when it has done the part, so that time in which the host
keeps the GPU waiting belongs to the part that the host was late with.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

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
"""How long each part of one step took."""


def total(step: Seconds) -> float:
    """Return how long a whole step took."""
    return sum(step.values())


class Marks:
    """Notes when parts of steps end.

    Args:
        device: Where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: list[list[tuple[str, Any]]] = [[]]
        self._start = self._now()

    def mark(self, part: str) -> None:
        """Note that what came since the last mark was `part`."""
        self._steps[-1].append((part, self._now()))

    def end_step(self) -> None:
        """Note that the next mark is of another step."""
        self._steps.append([])

    def seconds(self) -> list[Seconds]:
        """Return every ended step; a part that came several times is added up."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        found = []
        before = self._start
        for marks in self._steps[:-1]:
            taken = dict.fromkeys(PARTS, 0.0)
            for part, now in marks:
                taken[part] += _between(before, now)
                before = now
            found.append(taken)
        return found

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(before: Any, now: Any) -> float:
    return float(now - before) if isinstance(now, float) else before.elapsed_time(now) / 1000


@contextmanager
def marked(engine: Engine, marks: Marks) -> Iterator[None]:
    """Mark the inside of an engine's calls while the block runs, and leave it as it was.

    What comes before `engine.backward` is then forward, and what `engine.step` does before the
    optimizer's own step is unscaling and clipping; what it does after that is rest.
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
        # A recipe may step the optimizer some parameters at a time.
        nonlocal unscaled
        marks.mark("optimizer" if unscaled else "unscale_clip")
        unscaled = True

    def after_step(*_: Any) -> None:
        marks.mark("optimizer")

    hooks = [each.register_step_pre_hook(before_step) for each in engine.optimizers]
    hooks += [each.register_step_post_hook(after_step) for each in engine.optimizers]
    vars(engine).update(backward=backward, step=step)
    try:
        yield
    finally:
        del vars(engine)["backward"], vars(engine)["step"]
        for hook in hooks:
            hook.remove()
