"""The plan of an update: the list of the calls that close windows, for the parts in use.

A part of the engine that is not in use has no call in the list, so a step does not ask for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep import step_observer
from halfstep.engine.closing.result import OPEN, StepResult
from halfstep.engine.closure import refuse_missing_closure
from halfstep.engine.plan import calls
from halfstep.engine.plan.calls import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.window.window import Window


class StepPlan:
    """The calls of a step over the parts of an engine that are in use.

    Args:
        assembly: The engine's parts.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._parts: tuple[object, ...] = ()
        self._calls: list[Callable[[Step], None]] = []
        self._open = StepResult((OPEN,) * len(assembly.windows))

    def close(
        self, closing: Sequence[Window], *, number: int, closure: Callable[[], float] | None = None
    ) -> StepResult:
        """Close windows: each of their optimizers steps, or skips if a gradient is non-finite.

        Args:
            closing: Windows to close, with their remaining weight set; possibly none.
            number: Number of the step, from 1.
            closure: Passed to the optimizer, which computes its gradients with it.

        Returns:
            The result for every optimizer of the engine.
        """
        if not closing:
            return self._open
        step = Step(self._assembly, number, closing, closure)
        try:
            for call in self._planned(by_closure=closure is not None):
                call(step)
        finally:
            # After an error too: the gradients may be partly unscaled or incomplete.
            for window in closing:
                window.zero_grad()
            if self._assembly.replicas.expected:
                self._assembly.replicas.forget(closing)
        return StepResult(step.results)

    def _planned(self, *, by_closure: bool) -> list[Callable[[Step], None]]:
        """Return the calls of a step; they are planned again if other parts are in use."""
        assembly = self._assembly
        parts = (
            by_closure,
            step_observer.active is step_observer.NOBODY,
            assembly.replicas.expected,
            assembly.ranks.size,
            len(assembly.scales.scalers),
            len(assembly.settlement.schedulers),
            assembly.settlement.holds,
        )
        if parts != self._parts:
            self._parts, self._calls = parts, planned(assembly, by_closure=by_closure)
        return self._calls


def planned(assembly: Assembly, *, by_closure: bool) -> list[Callable[[Step], None]]:
    """Return the calls of a step over the parts that are in use now.

    Args:
        assembly: The engine's parts.
        by_closure: Whether the optimizer computes its gradients itself, with a closure.
    """
    scales, clips = bool(assembly.scales), bool(assembly.clipping)
    several, averages = assembly.ranks.size > 1, bool(assembly.averages)
    checks = assembly.checks and not by_closure
    observed = step_observer.active is not step_observer.NOBODY
    measures = clips or several or assembly.settlement.holds
    listed: tuple[tuple[Callable[[Step], None], bool], ...] = (
        (calls.hide_true_grads, len(assembly.scales.scalers) > 1),
        (calls.reduce, assembly.replicas.expected),
        (calls.collect_wide if scales or clips else calls.collect, True),
        (calls.unscale if scales else calls.weigh, True),
        (calls.report_unscaled, scales and observed),
        (calls.check, checks),
        (calls.measure_now if measures else calls.measure, True),
        (calls.agree, several),
        (calls.clip, clips),
        (calls.decide, scales or checks),
        (calls.record, True),
        (calls.cover_averages, averages),
        (calls.update_observed if observed else calls.update, True),
        (calls.update_averages, averages),
        (calls.settle_statistics, bool(assembly.moving)),
        (calls.update_scales, scales),
        (calls.settle_later, scales or checks or bool(assembly.settlement.schedulers)),
    )
    return [call for call, in_use in listed if in_use]


def refuse_untimely(windows: Sequence[Window]) -> None:
    """Refuse `engine.step()` without a closure if a backward or a closure is missing.

    Raises:
        RuntimeError: If there was no backward since the last step.
        TypeError: If an optimizer needs a closure.
    """
    if not any(window.pending for window in windows):
        raise RuntimeError(
            "engine.step() was called without an engine.backward() since the last step; call "
            "engine.backward(loss) once or more for each step"
        )
    for window in windows:
        if window.needs_closure:
            refuse_missing_closure(window.optimizer)
