"""Plain steps, the fast path: one optimizer, one process, no loss scale except the shared one.

A plain step gives the same bits as the general path in `backward.py` and `step.py`, but skips the
checks for features that are not in use. These checks take a tenth of a small model's step.
Properties that are fixed while the optimizer has the same parameters are computed only once. If a
step turns out not to be plain, nothing has been done yet, and the engine takes the general path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.engine import misuse
from halfstep.engine.closing.fused import has_momentum, start_momentum, supports_skipping
from halfstep.engine.closing.nonfinite import NonFiniteGradients, refuse_nonfinite
from halfstep.engine.closing.norm import GradientNorm
from halfstep.engine.closing.outcome import Outcome, WindowOutcome, outcome_of
from halfstep.engine.closing.result import OPEN, OptimizerStep, StepResult
from halfstep.engine.closing.step import take_step
from halfstep.engine.parallel.shards import is_sharded
from halfstep.engine.passes.root import RootGradient, is_bare
from halfstep.kernels import gradients
from halfstep.techniques.base import HALVES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.passes.batches import Loops
    from halfstep.engine.passes.weights import MicroBatchWeights
    from halfstep.techniques import LossScaler

OPEN_WINDOW = StepResult((OPEN,))
"""The result of a micro-step that closes no window."""


class PlainSteps:
    """The plain steps of an engine with one optimizer.

    Args:
        assembly: The engine's parts; `of` has checked that its steps can be plain.
        weights: The weights of micro-batches.
        loops: The engine's loops, which know whether a loop is at its last batch.
    """

    def __init__(self, assembly: Assembly, weights: MicroBatchWeights, loops: Loops) -> None:
        (self._window,) = assembly.windows
        self._assembly, self._weights, self._loops = assembly, weights, loops
        self._replicas, self._hooks = assembly.replicas, assembly.hooks
        self._device_type = assembly.device.type
        self._scaler, self._clipping = assembly.scales.shared, assembly.clipping
        self._accumulate = weights.accumulate
        hooks = assembly.hooks
        self._measures = bool(assembly.clipping)
        self._checks = assembly.checks
        self._raises = self._checks and assembly.nonfinite == "raise"
        # If True, each backward first checks for parameters that were added to the optimizer.
        self._prepares = bool(self._scaler or hooks.before_backward or hooks.adopt)
        self._schedules = bool(assembly.settlement.schedulers)
        # All steps whose gradients need no second look have the same outcome, so one object serves
        # all of them.
        self._stepped = Outcome(
            0, [WindowOutcome(self._window.optimizer, (), None, None)], [], None
        )
        self._root = RootGradient()
        self._params: Sequence[torch.Tensor] = ()
        self._sharded = self._widens = self._supports_skipping = self._on_cpu = False

    @classmethod
    def of(cls, assembly: Assembly, weights: MicroBatchWeights, loops: Loops) -> Self | None:
        """Return the plain steps of an engine; None if its steps can never be plain."""
        alone = assembly.ranks.size == len(assembly.windows) == 1
        takes_part = assembly.averages or assembly.evaluates_inside
        return cls(assembly, weights, loops) if alone and not takes_part else None

    def backward(self, loss: torch.Tensor, samples: int | None, *, retain_graph: bool) -> bool:
        """Accumulate the gradients of the only loss of a micro-step, if its backward is plain.

        Args:
            loss: Scalar, the mean over the micro-batch.
            samples: Number of samples in the micro-batch; None if samples are not counted.
            retain_graph: Whether to keep the graph.

        Returns:
            Whether the backward was plain; if not, nothing has been done.

        Raises:
            RuntimeError: If `samples` is given for only some micro-batches of a window.
        """
        window = self._window
        if (
            window.pending
            or self._replicas.expected
            or torch.is_autocast_enabled(self._device_type)
            or window.true_grads
            or window.lost_gradients
        ):
            return False
        observer = step_observer.active
        if (self._prepares or observer.listens) and not window.is_as_held():
            return False
        window.finish_norm()
        root = None
        if not observer.listens and is_bare(loss):
            root = self._root_of(loss, samples)
        else:
            loss = self._multiplied(loss, samples)
        try:
            for before_backward in self._hooks.before_backward:
                before_backward(window.params, again=window.backwards > 0)
            torch.autograd.backward(loss, root, retain_graph=retain_graph)
        except BaseException:
            window.refresh()
            self._assembly.zero_grad([window])  # only some gradients were accumulated
            raise
        window.after_backward(scaled=self._scaler is not None)
        return True

    def _root_of(self, loss: torch.Tensor, samples: int | None) -> torch.Tensor:
        """Count a micro-batch, and return the initial gradient for the backward of its loss."""
        window, weight = self._window, None
        if self._accumulate > 1 or samples is not None or window.counts_samples:
            weight = self._weights.count(loss, samples, [window], self._assembly.ranks)
        scaler = self._scaler
        if scaler is None and weight is None:
            return self._root.of(loss, None, None)
        step_observer.active.begins(scaler, weight)
        return self._root.of(loss, scaler.scale if scaler else None, weight)

    def _multiplied(self, loss: torch.Tensor, samples: int | None) -> torch.Tensor:
        """Count a micro-batch, and return its loss multiplied by its weight and the loss scale.

        Observers that listen see these products. They are notified of the parameters after the
        weighting and before the scaling, as on the general path.
        """
        window = self._window
        if self._accumulate > 1 or samples is not None or window.counts_samples:
            loss = self._weights.weigh(loss, samples, [window], self._assembly.ranks)
        step_observer.active.accumulates(window.optimizer, window.params)
        return self._assembly.scales.multiplied(loss, self._scaler) if self._scaler else loss

    def step(self, number: int, *, close: bool) -> StepResult | None:
        """End a micro-step; the previous step must be settled.

        Args:
            number: Number of the step, from 1, if the window closes.
            close: Whether to close the window even if it is not full.

        Returns:
            The result; None if the step is not plain, and then nothing has been done.
        """
        window = self._window
        if not window.pending or self._replicas.expected or window.true_grads:
            return None
        if window.micro_steps + 1 < self._accumulate:
            if close or self._loops.at_last_batch:
                return None
            if self._scaler and window.is_touched:
                misuse.warn_touched()
            window.end_micro_step()
            return OPEN_WINDOW
        if not window.is_as_held() or (
            window.counts_samples and window.samples != self._weights.full_samples
        ):
            return None
        reached, grads = self._gradients()
        if not grads:
            return None
        if self._scaler and window.is_touched:
            misuse.warn_touched()
        try:
            return self._close(number, reached, grads)
        finally:
            window.zero_grad()

    def _gradients(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return the parameters that have gradients, and the gradients.

        Both lists are empty if a gradient is sparse or sharded, so that the step is not plain.
        """
        params = self._window.params
        if params is not self._params:
            self._look_at(params)
        if self._sharded:
            return [], []
        reached, grads = params, [grad for param in params if (grad := param.grad) is not None]
        if len(grads) < len(params):
            reached = [param for param in params if param.grad is not None]
        for grad in grads:
            if grad.is_sparse:
                return [], []
        return reached, grads

    def _look_at(self, params: Sequence[torch.Tensor]) -> None:
        """Compute the properties that are fixed while the optimizer has these parameters."""
        self._params = params
        self._sharded = any(map(is_sharded, params))
        may_widen = bool(self._scaler or self._clipping)
        self._widens = may_widen and any(param.dtype in HALVES for param in params)
        self._on_cpu = self._assembly.device.type == "cpu" and all(
            param.device.type == "cpu" and not param.is_complex() for param in params
        )
        may_skip = self._scaler is not None or (self._checks and not self._raises)
        self._supports_skipping = may_skip and supports_skipping(
            self._window.optimizer, params, self._assembly.techniques
        )

    def _close(
        self, number: int, reached: list[torch.Tensor], grads: list[torch.Tensor]
    ) -> StepResult:
        """Unscale and clip `grads`, the gradients of the parameters `reached`; step or skip."""
        window, assembly = self._window, self._assembly
        window.reached = reached
        if self._widens:
            gradients.widen(reached)
            grads = [param.grad for param in reached if param.grad is not None]
        if self._scaler:
            self._unscale(grads, self._scaler)
        elif self._checks:
            self._check(grads)
        norm: torch.Tensor | GradientNorm
        if self._norm_can_wait():
            norm = GradientNorm(grads)
            window.wait_for(norm)
        else:
            window.each_norm = gradients.norms(grads)
            norm = total = window.grad_norm = torch.linalg.vector_norm(window.each_norm)
            if self._clipping:
                self._clipping.apply(reached, grads, total, assembly.full_precision)
        if self._raises and window.found_inf is not None:
            self._refuse_nonfinite(number)
        done = OptimizerStep(True, True, window.found_inf, norm, window.loss_scale)  # noqa: FBT003
        watched = step_observer.active is not step_observer.NOBODY
        if window.found_inf is not None or assembly.moving or watched:
            self._take_step(grads)
        else:
            take_step(self._hooks, window, None)
        updates = assembly.scales.update([window], ()) if self._scaler else ()
        if window.found_inf is not None:
            assembly.settlement.add(outcome_of(number, [window], updates))
        elif self._schedules or assembly.settlement.in_a_row:
            assembly.settlement.add(self._stepped)
        return StepResult((done,))

    def _unscale(self, grads: list[torch.Tensor], scaler: LossScaler) -> None:
        """Unscale gradients, and check them for inf and NaN."""
        window = self._window
        window.loss_scale = scaler.scale
        window.found_inf = found_inf = torch.zeros((), device=self._assembly.device)
        window.found = {None: found_inf}
        gradients.unscale(grads, scaler.inverse(), found_inf)
        step_observer.active.unscales(scaler, window.optimizer)

    def _check(self, grads: list[torch.Tensor]) -> None:
        """Check gradients for inf and NaN, without a loss scale."""
        found_inf = torch.zeros((), device=self._assembly.device)
        gradients.check(grads, found_inf, on_cpu=self._on_cpu)
        # If the host reads the flag anyway, a finite step is from here on as an unchecked one.
        if self._supports_skipping or bool(found_inf):
            self._window.found_inf = found_inf

    def _refuse_nonfinite(self, number: int) -> None:
        """Raise an error if a gradient is not finite, and restore the running statistics first."""
        try:
            refuse_nonfinite(number, [self._window], self._assembly.settlement.names)
        except NonFiniteGradients:
            self._assembly.unmake_statistics()
            raise

    def _norm_can_wait(self) -> bool:
        """Tell whether the norm of the gradients can be computed later, when it is read."""
        if self._measures or not self._window.norm_can_wait:
            return False
        return not self._assembly.explains

    def _take_step(self, grads: list[torch.Tensor]) -> None:
        """Step the optimizer. The host or the optimizer itself may skip it."""
        window, found_inf = self._window, self._window.found_inf
        optimizer = window.optimizer
        skipped, by_itself = False, False
        if found_inf is not None:
            if self._supports_skipping:
                start_momentum(optimizer)
                by_itself = has_momentum(optimizer)
            skipped = not by_itself and bool(found_inf)
        around = step_observer.active.steps(
            self._scaler, optimizer, found_inf, window.grad_norm, grads
        )
        if skipped:
            with around:
                pass
        elif around is step_observer.NOTHING:
            take_step(self._hooks, window, found_inf if by_itself else None)
        else:
            with around:
                take_step(self._hooks, window, found_inf if by_itself else None)
        for statistics in self._assembly.moving:
            if found_inf is not None and (skipped or by_itself):
                statistics.settle(found_inf)
            else:
                statistics.forget()
