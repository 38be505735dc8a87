"""The work when windows close, planned once: unscale, measure, clip, step, update the loss scale.

The plan is a list of calls. A part of the engine that is not in use has no call in it, so a step
does not ask for it. The gradients of all optimizers are measured before any optimizer steps. So a
host that needs to know whether they are finite waits for the device only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.engine.closing.agreement import agree
from halfstep.engine.closing.fused import skipping, skips_by_itself
from halfstep.engine.closing.nonfinite import refuse_nonfinite
from halfstep.engine.closing.outcome import outcome_of
from halfstep.engine.closing.result import OPEN, OptimizerStep, StepResult, result_of
from halfstep.engine.closure import refuse_missing_closure
from halfstep.engine.scales import SHARED, ScaleUpdate
from halfstep.kernels import gradients

if TYPE_CHECKING:
    from halfstep.engine.assemble import Assembly
    from halfstep.engine.window.window import Window


@dataclass(slots=True, eq=False)
class Step:
    """A step in progress.

    Attributes:
        number: Number of the step, from 1.
        closing: Windows that close, with their remaining weight set.
        closure: Passed to the optimizer, which computes its gradients with it.
        moving: The closing windows whose optimizers step, or skip the step.
        on_device: Those of them whose optimizers read `found_inf` themselves.
        skipped: Those of them that the host skips.
        updates: The loss scales that the step has updated.
        results: The result for every optimizer of the engine.
    """

    number: int
    closing: Sequence[Window]
    closure: Callable[[], float] | None
    moving: Sequence[Window] = ()
    on_device: list[Window] = field(default_factory=list)
    skipped: list[Window] = field(default_factory=list)
    updates: Sequence[ScaleUpdate] = ()
    results: tuple[OptimizerStep, ...] = ()


Call = Callable[[Step], None]


class StepPlan:
    """The calls of a step over the parts of an engine that are in use.

    Args:
        assembly: The engine's parts.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._parts: tuple[object, ...] = ()
        self._calls: list[Call] = []
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
        step = Step(number, closing, closure)
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

    def _planned(self, *, by_closure: bool) -> list[Call]:
        """Return the calls of a step; they are planned again if other parts are in use."""
        assembly = self._assembly
        parts = (
            by_closure,
            step_observer.active is step_observer.NOBODY,
            assembly.replicas.expected,
            assembly.ranks.size,
            len(assembly.scales.scalers),
            len(assembly.settlement.schedulers),
        )
        if parts != self._parts:
            self._parts, self._calls = parts, self._plan(by_closure=by_closure)
        return self._calls

    def _plan(self, *, by_closure: bool) -> list[Call]:
        assembly = self._assembly
        scales, several = bool(assembly.scales), assembly.ranks.size > 1
        checks = assembly.checks and not by_closure
        observed = step_observer.active is not step_observer.NOBODY
        averages = bool(assembly.averages)
        calls: tuple[tuple[Call, bool], ...] = (
            (_hide_true_grads, len(assembly.scales.scalers) > 1),
            (self._reduce, assembly.replicas.expected),
            (self._collect, True),
            (self._unscale, scales),
            (self._report_unscaled, scales and observed),
            (self._check, checks),
            (self._measure_now if assembly.clipping or several else self._measure, True),
            (self._agree, several),
            (self._clip, bool(assembly.clipping)),
            (self._decide, scales or checks),
            (self._record, True),
            (_cover_averages, averages),
            (self._update_observed if observed else self._update, True),
            (_update_averages, averages),
            (self._settle_statistics, bool(assembly.moving)),
            (self._update_scales, scales),
            (self._settle_later, True),
        )
        return [call for call, in_use in calls if in_use]

    def _reduce(self, step: Step) -> None:
        """Average the gradients over processes where DDP has not."""
        self._assembly.replicas.average(step.closing)

    def _collect(self, step: Step) -> None:
        """Collect the gradients of each window; without a loss scale, apply its weight."""
        assembly = self._assembly
        scales, widens = assembly.scales, bool(assembly.scales or assembly.clipping)
        for window in step.closing:
            weight = window.remaining_weight
            window.collect(widens=widens or weight != 1.0 or window.full_samples is not None)
            if weight != 1.0 and not scales:
                for grad in window.grads:
                    grad.mul_(weight)
        if step.closure is None:
            step.moving = [window for window in step.closing if window.reached]
        else:
            step.moving = step.closing

    def _unscale(self, step: Step) -> None:
        """Unscale the gradients, and check them for inf and NaN."""
        for window in step.closing:
            self._assembly.scales.unscale(window)
            window.update_found_inf()
        step.moving = [window for window in step.closing if window.reached]

    def _report_unscaled(self, step: Step) -> None:
        for window in step.closing:
            step_observer.active.unscales(self._assembly.scales.shared, window.optimizer)

    def _check(self, step: Step) -> None:
        """Check the gradients for inf and NaN without a loss scale."""
        for window in step.closing:
            window.found = {SHARED: torch.zeros((), device=self._assembly.device)}
            gradients.check(window.grads, window.found[SHARED])
            window.update_found_inf()

    def _measure(self, step: Step) -> None:
        """Compute the norms that cannot be computed when they are read."""
        explains = self._assembly.explains
        for window in step.closing:
            window.measure(now=explains)

    def _measure_now(self, step: Step) -> None:
        for window in step.closing:
            window.measure(now=True)

    def _agree(self, step: Step) -> None:
        agree(step.closing, self._assembly.ranks)

    def _clip(self, step: Step) -> None:
        for window in step.moving:
            if window.grad_norm is not None:
                self._assembly.clipping.apply(
                    window.reached, window.grads, window.grad_norm, self._assembly.full_precision
                )

    def _decide(self, step: Step) -> None:
        """Find the windows to skip. The host waits unless the optimizers skip by themselves.

        Raises:
            NonFiniteGradients: If a gradient is not finite under `nonfinite="raise"`.
        """
        assembly = self._assembly
        refuses = assembly.checks and assembly.nonfinite == "raise"
        asking = []
        for window in step.moving:
            if window.found_inf is not None:
                by_itself = not refuses and skips_by_itself(window, assembly.techniques)
                (step.on_device if by_itself else asking).append(window)
        flags = [window.found_inf for window in asking if window.found_inf is not None]
        if not flags:
            return
        found = torch.stack(flags).tolist() if len(flags) > 1 else [flags[0].item()]
        for window, found_inf in zip(asking, found, strict=True):
            if found_inf:
                step.skipped.append(window)
            elif not assembly.scales:
                window.found_inf = None  # from here on, an unchecked step
        if refuses and step.skipped:
            self._settle_statistics(step)
            refuse_nonfinite(step.number, step.skipped, assembly.settlement.names)

    def _record(self, step: Step) -> None:
        """Take the results before the optimizers step, which may write to gradients."""
        by_closure = step.closure is not None
        step.results = tuple(
            [
                result_of(window, by_closure=by_closure) if window in step.closing else OPEN
                for window in self._assembly.windows
            ]
        )

    def _update(self, step: Step) -> None:
        for window in step.moving:
            self._update_window(step, window)

    def _update_observed(self, step: Step) -> None:
        scaler = self._assembly.scales.shared
        for window in step.moving:
            with step_observer.active.steps(
                scaler, window.optimizer, window.found_inf, window.grad_norm, window.grads
            ):
                self._update_window(step, window)

    def _update_window(self, step: Step, window: Window) -> None:
        """Step an optimizer, with the hooks of techniques before, around and after its step."""
        if step.skipped and window in step.skipped:
            return
        optimizer, hooks = window.optimizer, self._assembly.hooks
        for before_step in hooks.before_step:
            before_step(optimizer, window.reached)
        take: Callable[[], object] = optimizer.step
        if step.closure is not None:
            take = partial(take, step.closure)
        for around in reversed(hooks.step):
            take = partial(around, optimizer, take)
        learns = window.learns
        if learns:
            window.about_to_step()
        with window.guard:
            if window.found_inf is not None and window in step.on_device:
                with skipping(optimizer, window.found_inf):
                    take()
            else:
                take()
        if learns:
            window.has_stepped()
        for after_step in hooks.after_step:
            after_step(optimizer)

    def _settle_statistics(self, step: Step) -> None:
        """Restore the running statistics of models whose step was skipped; drop other copies."""
        closing, assembly = step.closing, self._assembly
        looked = step.moving if step.closure is None else ()
        still_open = [w for w in assembly.windows if w.backwards and w not in closing]
        for statistics in assembly.moving:
            own = [window for window in looked if statistics.belong_to(window.params)]
            waits = any(statistics.belong_to(window.params) for window in still_open)
            if not own and not waits:
                # No window in progress trains this model, so its forward pass was part of the step
                # of the closing windows.
                own = [*looked]
            found = [window.found_inf for window in own if window.found_inf is not None]
            if found:
                statistics.settle(found[0] if len(found) == 1 else torch.stack(found).amax())
            elif own or not waits:
                statistics.forget()

    def _update_scales(self, step: Step) -> None:
        waiting = [window for window in self._assembly.windows if window not in step.closing]
        if step.moving:
            step.updates = self._assembly.scales.update(step.closing, waiting)

    def _settle_later(self, step: Step) -> None:
        """Keep what the next step must know of this one."""
        settlement = self._assembly.settlement
        if not step.moving:
            return
        checked = any(window.found_inf is not None for window in step.moving)
        if checked or settlement.schedulers or settlement.in_a_row:
            settlement.add(outcome_of(step.number, step.moving, step.updates))


def _hide_true_grads(step: Step) -> None:
    for window in step.closing:
        window.hide_true_grads()


def _cover_averages(step: Step) -> None:
    for window in step.moving:
        if window.average:
            window.average.cover(window.params)


def _update_averages(step: Step) -> None:
    for window in step.moving:
        if window.average:
            window.average.update(window.found_inf)


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
