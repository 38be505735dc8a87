"""The calls of a step when windows close, in the order in which a plan lists them.

The gradients of all optimizers are measured before any optimizer steps. So a host that needs to
know whether they are finite waits for the device only once.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.engine.closing.agreement import agree as agree_over
from halfstep.engine.closing.fused import skipping, skips_by_itself
from halfstep.engine.closing.nonfinite import refuse_nonfinite
from halfstep.engine.closing.outcome import outcome_of
from halfstep.engine.closing.result import OPEN, OptimizerStep, result_of
from halfstep.engine.scales import SHARED, ScaleUpdate
from halfstep.kernels import gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.window.window import Window


@dataclass(slots=True, eq=False)
class Step:
    """A step in progress.

    Attributes:
        assembly: The engine's parts.
        number: Number of the step, from 1.
        closing: Windows that close, with their remaining weight set.
        closure: Passed to the optimizer, which computes its gradients with it.
        moving: The closing windows whose optimizers step, or skip the step.
        on_device: Those of them whose optimizers read `found_inf` themselves.
        skipped: Those of them that the host skips.
        updates: The loss scales that the step has updated.
        results: The result for every optimizer of the engine.
    """

    assembly: Assembly
    number: int
    closing: Sequence[Window]
    closure: Callable[[], float] | None
    moving: Sequence[Window] = ()
    on_device: list[Window] = field(default_factory=list)
    skipped: list[Window] = field(default_factory=list)
    updates: Sequence[ScaleUpdate] = ()
    results: tuple[OptimizerStep, ...] = ()


def hide_true_grads(step: Step) -> None:
    """Take gradients of losses with their own scale out of `.grad`."""
    for window in step.closing:
        window.hide_true_grads()


def reduce(step: Step) -> None:
    """Average the gradients over processes where DDP has not."""
    step.assembly.replicas.average(step.closing)


def collect(step: Step) -> None:
    """Collect the gradients of each window, in their format if the window is full."""
    _collect(step, widens=False)


def collect_wide(step: Step) -> None:
    """Collect the gradients in fp32 or wider."""
    _collect(step, widens=True)


def _collect(step: Step, *, widens: bool) -> None:
    for window in step.closing:
        weighs = window.remaining_weight != 1.0 or window.full_samples is not None
        window.collect(widens=widens or weighs)
    step.moving = (
        [window for window in step.closing if window.reached]
        if step.closure is None
        else step.closing
    )


def weigh(step: Step) -> None:
    """Apply the remaining weight of each window, which unscaling would apply, too."""
    for window in step.closing:
        if window.remaining_weight != 1.0:
            for grad in window.grads:
                grad.mul_(window.remaining_weight)


def unscale(step: Step) -> None:
    """Unscale the gradients, and check them for inf and NaN."""
    for window in step.closing:
        step.assembly.scales.unscale(window)
        window.update_found_inf()
    step.moving = [window for window in step.closing if window.reached]


def report_unscaled(step: Step) -> None:
    """Report the unscaling to the observer."""
    for window in step.closing:
        step_observer.active.unscales(step.assembly.scales.shared, window.optimizer)


def check(step: Step) -> None:
    """Check the gradients for inf and NaN without a loss scale."""
    for window in step.closing:
        kept, window.unset = window.unset, None
        found_inf = torch.zeros_like(step.assembly.one) if kept is None else kept
        if window.real_on_cpu and not step_observer.active.listens:
            gradients.check_in_place(window.grads, found_inf, step.assembly.one)
        else:
            gradients.check(window.grads, found_inf)
        window.found = {SHARED: found_inf}
        window.update_found_inf()


def measure(step: Step) -> None:
    """Compute the norms that cannot be computed when they are read."""
    for window in step.closing:
        window.measure(now=False)


def measure_now(step: Step) -> None:
    """Compute all norms, as the step needs them."""
    for window in step.closing:
        window.measure(now=True)


def agree(step: Step) -> None:
    """Replace the measurements by those over all processes."""
    agree_over(step.closing, step.assembly.ranks)


def clip(step: Step) -> None:
    """Clip the gradients."""
    for window in step.moving:
        if window.grad_norm is not None:
            step.assembly.clipping.apply(
                window.reached, window.grads, window.grad_norm, step.assembly.full_precision
            )


def decide(step: Step) -> None:
    """Find the windows to skip. The host waits unless the optimizers skip by themselves.

    If a message about a skip in this step would name parameters, the gradients are measured.

    Raises:
        NonFiniteGradients: If a gradient is not finite under `nonfinite="raise"`.
    """
    assembly = step.assembly
    refuses = assembly.checks and assembly.nonfinite == "raise"
    asking: list[Window] = []
    for window in step.moving:
        if window.found_inf is not None:
            by_itself = not refuses and skips_by_itself(window, assembly.techniques)
            (step.on_device if by_itself else asking).append(window)
    if step.on_device and assembly.explains:
        measure_now(step)
    flags = [window.found_inf for window in asking if window.found_inf is not None]
    if not flags:
        return
    found = torch.stack(flags).tolist() if len(flags) > 1 else [flags[0].item()]
    if any(found) and assembly.explains:
        measure_now(step)
    for window, found_inf in zip(asking, found, strict=True):
        if found_inf:
            step.skipped.append(window)
        elif not assembly.scales:
            # From here on, an unchecked step.
            window.unset, window.found_inf = window.found_inf, None
    if refuses and step.skipped:
        settle_statistics(step)
        refuse_nonfinite(step.number, step.skipped, assembly.settlement.names)


def record(step: Step) -> None:
    """Take the results before the optimizers step, which may write to gradients."""
    by_closure = step.closure is not None
    step.results = tuple(
        [
            result_of(window, by_closure=by_closure) if window in step.closing else OPEN
            for window in step.assembly.windows
        ]
    )


def cover_averages(step: Step) -> None:
    """Start averages of added parameters."""
    for window in step.moving:
        if window.average:
            window.average.cover(window.params)


def update(step: Step) -> None:
    """Step the optimizers."""
    for window in step.moving:
        _update_window(step, window)


def update_observed(step: Step) -> None:
    """Step the optimizers in the observer's context."""
    scaler, checked = step.assembly.scales.shared, step.assembly.checks and step.closure is None
    for window in step.moving:
        found_inf = window.found_inf
        with step_observer.active.steps(
            scaler,
            window.optimizer,
            found_inf,
            window.grad_norm,
            finite=checked and found_inf is None,
        ):
            _update_window(step, window)


def _update_window(step: Step, window: Window) -> None:
    """Step an optimizer, with the hooks of techniques before, around and after its step."""
    if step.skipped and window in step.skipped:
        return
    optimizer, hooks = window.optimizer, step.assembly.hooks
    for before_step in hooks.before_step:
        before_step(optimizer, window.reached)
    take: Callable[[], object] = optimizer.step
    if step.closure is not None:
        take = partial(optimizer.step, step.closure)
    for around in reversed(hooks.step):
        take = partial(around, optimizer, take)
    learns = window.learns
    if learns:
        window.about_to_step()
    with window.guard, window.one_pass or nullcontext():
        if window.found_inf is not None and window in step.on_device:
            with skipping(optimizer, window.found_inf):
                take()
        else:
            take()
    if learns:
        window.has_stepped()
    for after_step in hooks.after_step:
        after_step(optimizer)


def update_averages(step: Step) -> None:
    """Update the averages of the weights."""
    for window in step.moving:
        if window.average:
            window.average.update(window.found_inf)


def settle_statistics(step: Step) -> None:
    """Restore the running statistics of models whose step was skipped; drop other copies."""
    closing, assembly = step.closing, step.assembly
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


def update_scales(step: Step) -> None:
    """Update the loss scales, and rescale the gradients of open windows."""
    waiting = [window for window in step.assembly.windows if window not in step.closing]
    if step.moving:
        step.updates = step.assembly.scales.update(step.closing, waiting)


def settle_later(step: Step) -> None:
    """Keep what the next step must know of this one."""
    settlement = step.assembly.settlement
    if not step.moving:
        return
    checked = any(window.found_inf is not None for window in step.moving)
    if checked or settlement.schedulers or settlement.in_a_row:
        settlement.add(outcome_of(step.number, step.moving, step.updates))
