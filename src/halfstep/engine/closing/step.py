"""The work when windows close: unscale, measure, clip, step, update the loss scale, clean up.

The gradients of all optimizers are measured before any optimizer steps. So a host that needs to
know whether they are finite waits for the device only once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.engine.closing.agreement import agree
from halfstep.engine.closing.closure import refuse_missing_closure
from halfstep.engine.closing.fused import has_momentum, skipping, start_momentum, supports_skipping
from halfstep.engine.closing.nonfinite import NonFiniteGradients, refuse_nonfinite
from halfstep.engine.closing.outcome import outcome_of
from halfstep.engine.closing.result import OPEN, StepResult
from halfstep.engine.scales import SHARED
from halfstep.kernels import gradients
from halfstep.optim import sgd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.optim import Optimizer

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.hooks import Hooks
    from halfstep.engine.window import Window


def close_windows(
    assembly: Assembly,
    closing: Sequence[Window],
    *,
    step: int,
    closure: Callable[[], float] | None = None,
) -> StepResult:
    """Close windows: each of their optimizers steps, or skips if a gradient is non-finite.

    Args:
        assembly: The engine's parts.
        closing: Windows to close, with their remaining weight set.
        step: Number of the step, from 1.
        closure: Passed to the optimizer, which computes its gradients with it.

    Returns:
        The result for every optimizer of the engine.
    """
    scales = assembly.scales
    checks = assembly.checks and closure is None
    try:
        _prepare_gradients(assembly, closing, checks=checks)
        if checks and assembly.nonfinite == "raise":
            _refuse_nonfinite(assembly, closing, step)
        by_closure = closure is not None
        done = [
            window.snapshot(by_closure=by_closure) if window in closing else OPEN
            for window in assembly.windows
        ]
        moving = [window for window in closing if window.reached or closure is not None]
        skipped = _skipped_by_host(assembly, moving)
        for window in moving:
            if window.average:
                window.average.cover(window.params)
            with step_observer.active.steps(
                scales.shared, window.optimizer, window.found_inf, window.grad_norm
            ):
                if window not in skipped:
                    found_inf = window.found_inf
                    if found_inf is not None and not _skips_itself(assembly, window):
                        found_inf = None
                    take_step(assembly.hooks, window, found_inf, closure)
            if window.average:
                window.average.update(window.found_inf)
        _settle_statistics(assembly, closing)
        if moving and (scales or checks or assembly.settlement.schedulers):
            waiting = [window for window in assembly.windows if window not in closing]
            updates = scales.update(closing, waiting)
            assembly.settlement.add(outcome_of(step, moving, updates))
    finally:
        # After an error too: the gradients may be partly unscaled or incomplete.
        for window in closing:
            window.zero_grad()
        if assembly.replicas.expected:
            assembly.replicas.forget(closing)
    return StepResult(tuple(done))


def _prepare_gradients(assembly: Assembly, closing: Sequence[Window], *, checks: bool) -> None:
    """Average the gradients of the windows over processes, unscale, measure and clip them."""
    now = bool(assembly.explains or assembly.clipping or assembly.ranks.size > 1)
    for window in closing:
        window.hide_true_grads()
    if assembly.replicas.expected:
        assembly.replicas.average(closing)
    for window in closing:
        _make_true(assembly, window, checks=checks)
        window.measure(now=now)
    if not now:
        return
    agree(closing, assembly.ranks)
    for window in closing if assembly.clipping else ():
        if window.grad_norm is not None:
            assembly.clipping.apply(
                window.reached, window.dense_gradients, window.grad_norm, assembly.full_precision
            )


def _make_true(assembly: Assembly, window: Window, *, checks: bool) -> None:
    """Unscale the gradients of a window, apply its remaining weight if known, and check them."""
    weight = window.remaining_weight
    weighs = weight != 1.0 or window.full_samples is not None
    gradients.coalesce(window.params)
    if assembly.scales or assembly.clipping or weighs:
        gradients.widen(window.params)
    if assembly.scales:
        assembly.scales.unscale(window)
    elif weight != 1.0:
        for grad in window.dense_gradients:
            grad.mul_(weight)
    if checks:
        window.found = {SHARED: torch.zeros((), device=assembly.device)}
        gradients.check(window.dense_gradients, window.found[SHARED])


def _refuse_nonfinite(assembly: Assembly, closing: Sequence[Window], step: int) -> None:
    """Raise an error if a gradient is not finite, and restore the running statistics first."""
    try:
        refuse_nonfinite(step, closing, assembly.settlement.names)
    except NonFiniteGradients:
        _settle_statistics(assembly, closing)
        raise


def _skipped_by_host(assembly: Assembly, moving: Sequence[Window]) -> list[Window]:
    """Return the windows to skip whose optimizers cannot skip by themselves; waits for the device.

    Optimizers that can skip by themselves get their momentum buffers first, which they need for it.
    """
    checked = [window for window in moving if window.found_inf is not None]
    for window in checked:
        if supports_skipping(window.optimizer, window.params, assembly.techniques):
            start_momentum(window.optimizer)
    asking = [window for window in checked if not _skips_itself(assembly, window)]
    if not asking:
        return []
    found = torch.stack([w.found_inf for w in asking if w.found_inf is not None]).tolist()
    return [window for window, found_inf in zip(asking, found, strict=True) if found_inf]


def _skips_itself(assembly: Assembly, window: Window) -> bool:
    optimizer = window.optimizer
    supports = supports_skipping(optimizer, window.params, assembly.techniques)
    return supports and has_momentum(optimizer)


def take_step(
    hooks: Hooks,
    window: Window,
    found_inf: torch.Tensor | None,
    closure: Callable[[], float] | None = None,
) -> None:
    """Step an optimizer.

    Args:
        hooks: The hooks of techniques before, around and after the step.
        window: The window of the optimizer, with unscaled gradients.
        found_inf: Scalar that makes the optimizer itself skip the step if it is nonzero; None if
            the optimizer must not skip.
        closure: Passed to the optimizer.
    """
    optimizer = window.optimizer
    for before_step in hooks.before_step:
        before_step(optimizer, window.reached)
    take: Callable[[], object] = partial(_step, optimizer)
    if closure is not None:
        take = partial(optimizer.step, closure)
    for step in reversed(hooks.step):
        take = partial(step, optimizer, take)
    if window.learns:
        window.about_to_step()
    with window.guard:
        if found_inf is None:
            take()
        else:
            with skipping(optimizer, found_inf):
                take()
    if window.learns:
        window.has_stepped()
    for after_step in hooks.after_step:
        after_step(optimizer)


def _step(optimizer: Optimizer) -> None:
    if not sgd.step(optimizer):
        optimizer.step()


def _settle_statistics(assembly: Assembly, closing: Sequence[Window]) -> None:
    """Restore the running statistics of models whose step was skipped; drop the other copies."""
    looked = [window for window in closing if window.found_inf is not None]
    still_open = [w for w in assembly.windows if w.backwards and w not in closing]
    for statistics in assembly.moving:
        own = [window for window in looked if statistics.belong_to(window.params)]
        waits = any(statistics.belong_to(window.params) for window in still_open)
        if not own and not waits:
            # No window in progress trains this model, so its forward pass was part of the step of
            # the closing windows.
            own = looked
        found = [window.found_inf for window in own if window.found_inf is not None]
        if found:
            statistics.settle(torch.stack(found).amax())
        elif closing and not waits:
            statistics.forget()


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
