"""One optimizer and its accumulation window, with the gradients that backward passes leave."""

from __future__ import annotations

from contextlib import ExitStack
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from halfstep.engine.closure import needs_closure
from halfstep.engine.guard import StepGuard
from halfstep.engine.processes.shards import is_sharded, local
from halfstep.engine.window.norm import GradientNorm, is_steady
from halfstep.kernels import gradients
from halfstep.optim.one_pass import OnePass
from halfstep.optim.zero import local_optimizer

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torch.optim import Optimizer

    from halfstep.engine.average import WeightAverage
    from halfstep.mechanisms.technique import Technique


_KIND = attrgetter("dtype", "is_sparse")
_ORDINARY = {(torch.float32, False), (torch.float64, False)}
"""The dtypes of gradients that need no cast, and whether they are sparse."""


class Window:
    """One optimizer, its guard, and its current accumulation window.

    Args:
        optimizer: The optimizer, not yet prepared by the techniques.
        techniques: The techniques that implement the recipe.

    Attributes:
        needs_closure: Whether the optimizer evaluates the loss inside its step.
        guard: Refuses steps of the optimizer, except in its context, which the engine enters.
        average: The average of the weights, or None if the engine keeps none.
        params: The model's parameters that the optimizer updates, in the optimizer's order, as of
            the last `refresh`.
        micro_steps: Number of micro-steps in the window so far.
        counts_samples: Whether the samples of the window's micro-batches are counted.
        samples: Number of samples in the window so far on this process. After the state was saved
            with several processes, their mean.
        backwards: Number of backward passes that may have reached the parameters in the window.
        pending: Whether a backward ran since the last call of `engine.step()`.
        true_grads: fp32 (or fp64) gradients of losses with their own scale, already unscaled, by
            parameter. Between calls of the engine, `.grad` of a parameter refers to them if it
            would be None otherwise.
        found: By `loss_id` of a scale: fp32 scalar, nonzero if gradients with this scale were
            non-finite. The shared scale (None) is entered when its gradients are unscaled, or,
            without a loss scale, when all gradients are checked.
        counted: The `loss_id` of each scale that was already updated for its entry in `found`.
        remaining_weight: Factor on the gradients when the window closes; 1 for a full window.
        full_samples: Number of samples in a full window on one process. It is set only if the
            remaining weight depends on the samples of all processes; else None.
        sharded: Whether a parameter is sharded, as of the last `refresh`.
        real_on_cpu: Whether all parameters are on the CPU and none is complex, likewise.
        one_pass: Context of the optimizer's steps if C can update its parameters, likewise.
        reached: The parameters that had a gradient when the window closed.
        grads: The gradients of `reached` as `collect` found them: the local part of each, and for
            a sparse gradient its values. They share memory with `.grad`.
        each_norm: 2-norm of each unscaled gradient before clipping, in the order of `reached`; None
            if there is no gradient or the step does not need the norms.
        grad_norm: 2-norm over all these gradients, a scalar; None in the same cases.
        found_inf: Scalar, nonzero if a gradient was non-finite; None if not checked.
        unset: fp32 scalar 0, the `found_inf` of an earlier step that nothing else refers to; None
            if there is none.
        loss_scale: The shared loss scale of the gradients, a scalar; None without loss scaling.
    """

    def __init__(self, optimizer: Optimizer, techniques: Sequence[Technique]) -> None:
        self.optimizer = optimizer
        self.needs_closure = needs_closure(optimizer)
        self.guard = StepGuard(optimizer, self._drop_gradients)
        self.average: WeightAverage | None = None
        self.unset: torch.Tensor | None = None
        self.params: list[torch.Tensor] = []
        self.sharded = self.real_on_cpu = False
        self.one_pass: OnePass | None = None
        self._techniques = techniques
        self._held: list[list[torch.Tensor]] = []
        self._closed = False
        self._keeps_gradients: bool | None = None
        self._before_step: list[tuple[int, int] | None] = []
        self._later: ref[GradientNorm] | None = None
        self._drop_true_grads()
        self.reset()

    def reset(self) -> None:
        """Start a new window."""
        self.micro_steps = 0
        self.counts_samples = False
        self.samples: float = 0
        self.backwards = 0
        self.pending = False
        self._had_gradients = False
        self._versions: Sequence[tuple[int, int] | None] = ()
        if self.found or self.true_grads:
            self._drop_true_grads()
        self.remaining_weight = 1.0
        self.full_samples: float | None = None
        self.reached: Sequence[torch.Tensor] = ()
        self.grads: list[torch.Tensor] = []
        self.each_norm: torch.Tensor | None = None
        self.grad_norm: torch.Tensor | None = None
        self.found_inf: torch.Tensor | None = None
        self.loss_scale: torch.Tensor | None = None

    def _drop_true_grads(self) -> None:
        self.true_grads: dict[torch.Tensor, torch.Tensor] = {}
        self.found: dict[Hashable, torch.Tensor] = {}
        self.counted: set[Hashable] = set()

    def refresh(self) -> None:
        """Update `params` if parameters were added to the optimizer or replaced in it."""
        if self.is_as_held() or self._closed:
            return
        for technique in self._techniques:
            technique.adopt(self.optimizer)
        self._held = [list(group["params"]) for group in self.optimizer.param_groups]
        params = [param for held in self._held for param in held]
        for technique in self._techniques:
            params = technique.model_params(params)
        self.params = params
        self.sharded = any(map(is_sharded, params))
        self.real_on_cpu = all(
            param.device.type == "cpu" and not param.is_complex() for param in params
        )
        self.one_pass = OnePass.of(self.optimizer)

    def is_as_held(self) -> bool:
        """Tell whether the optimizer holds the same parameters as at the last `refresh`."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self._held):
            return False
        for group, held in zip(groups, self._held, strict=True):
            params = group["params"]
            if len(params) != len(held) or not all(map(is_, params, held)):
                return False
        return True

    def load_optimizer(self, saved: dict[str, Any] | None) -> None:
        """Load the state of the optimizer, and keep it in the formats that the techniques use.

        Raises:
            ValueError: If `saved` is None: ZeRO's state was saved on another rank than 0.
        """
        if saved is None:
            raise ValueError(
                "the state of a ZeroRedundancyOptimizer is complete on rank 0 only; load the state "
                "of rank 0 on every process"
            )
        self._load(self.optimizer, saved)

    def recast_optimizer(self) -> None:
        """Cast the optimizer's existing state to the formats that the techniques use."""
        local = local_optimizer(self.optimizer)
        if local.state:
            self._load(local, local.state_dict())

    def _load(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        with ExitStack() as stack:
            for technique in self._techniques:
                stack.enter_context(technique.loading(optimizer))
            optimizer.load_state_dict(saved)

    def dense_gradients(self, *, widens: bool) -> list[torch.Tensor]:
        """Coalesce sparse gradients; return the local part of each gradient, or its values.

        Args:
            widens: Whether to cast half gradients to fp32 first.
        """
        params = self.params
        grads = [grad for param in params if (grad := param.grad) is not None]
        kinds = set(map(_KIND, grads))
        if kinds <= _ORDINARY:
            return [local(grad) for grad in grads] if self.sharded else grads
        if any(is_sparse for _, is_sparse in kinds):
            gradients.coalesce(params)
        if widens:
            gradients.widen(params)
        return [local(grad) for grad in gradients.dense(params)]

    def collect(self, *, widens: bool) -> None:
        """Set `grads` and `reached`; see `dense_gradients`."""
        params = self.params
        self.grads = self.dense_gradients(widens=widens)
        if len(self.grads) == len(params):
            self.reached = params
        else:
            self.reached = [param for param in params if param.grad is not None]

    @property
    def holds_gradients(self) -> bool:
        """Whether any parameter has a gradient."""
        for param in self.params:  # noqa: SIM110  (each backward asks, and a generator takes longer)
            if param.grad is not None:
                return True
        return False

    @property
    def lost_gradients(self) -> bool:
        """Whether other code has dropped all gradients that a backward left in this window."""
        return self._had_gradients and not self.holds_gradients

    @property
    def is_touched(self) -> bool:
        """Whether gradients were replaced or changed in place since `mark_gradients`."""
        return bool(self._versions) and self._versions != _versions(self.params)

    def show_true_grads(self) -> None:
        """Set `.grad` to the gradient in `true_grads` where `.grad` is None.

        So code that sets `.grad` to None drops this gradient too.
        """
        for param, true in self.true_grads.items():
            if param.grad is None:
                gradients.put(param, true)

    def hide_true_grads(self) -> None:
        """Undo `show_true_grads`, and drop gradients that other code has dropped in between."""
        if not self.true_grads:
            return
        there = dict(self.true_grads)
        for param, true in there.items():
            if param.grad is None:
                del self.true_grads[param]
            elif param.grad is true:
                param.grad = None
        if not self.true_grads:
            self._drop_true_grads()  # drops their entries in `found` too

    def after_backward(self, *, scaled: bool) -> None:
        """Record a backward that may have reached the parameters.

        Args:
            scaled: Whether the gradients are multiplied by a loss scale, so that other code must
                not change them.
        """
        if self.true_grads:
            self.show_true_grads()
        self.pending = True
        self.backwards += 1
        self._had_gradients = self.holds_gradients
        if scaled:
            self.mark_gradients()

    def mark_gradients(self) -> None:
        """Remember the current gradients, to detect changes by other code."""
        self._versions = _versions(self.params)

    def end_micro_step(self) -> None:
        """Count a micro-step; the next micro-step needs another backward."""
        self.micro_steps += 1
        self.pending = False

    def replayed(
        self, grads: Sequence[torch.Tensor | None], *, samples: int | None, scaled: bool
    ) -> None:
        """Record a micro-step that was replayed, and left the window open.

        Args:
            grads: The gradients of `params`, in the memory of the replay.
            samples: Number of samples of the micro-batch; None if samples are not counted.
            scaled: As in `after_backward`.
        """
        for param, grad in zip(self.params, grads, strict=True):
            if param.grad is not grad:
                if grad is not None and param.grad_dtype != grad.dtype:
                    param.grad_dtype = grad.dtype
                param.grad = grad
        self.counts_samples = samples is not None
        self.samples += samples or 0
        self.after_backward(scaled=scaled)
        self.end_micro_step()

    def measure(self, *, now: bool) -> None:
        """Compute the norms of the unscaled gradients.

        Args:
            now: Whether the step needs the norms. If not, they are computed only if they cannot be
                computed later, when they are read (`norm_can_wait`).
        """
        if self.each_norm is None and self.grads and (now or not self.norm_can_wait):
            self.each_norm = gradients.norms(self.grads)
            self.grad_norm = torch.linalg.vector_norm(self.each_norm)

    @property
    def norm_can_wait(self) -> bool:
        """Whether it is known that the optimizer's steps do not write to gradients.

        Then the norm of the gradients can be computed after the step.
        """
        return self._keeps_gradients is True and is_steady(self.optimizer)

    @property
    def learns(self) -> bool:
        """Whether it is still unknown if a step of the optimizer writes to gradients."""
        return self._keeps_gradients is None

    def about_to_step(self) -> None:
        """Remember the gradients before the first step, to learn whether it writes to them."""
        self._before_step = _versions(self.params)

    def has_stepped(self) -> None:
        """Record whether the first step wrote to the gradients."""
        self._keeps_gradients = self._before_step == _versions(self.params)
        self._before_step = []

    def norm(self) -> torch.Tensor | GradientNorm | None:
        """Return the norm of the gradients, or what computes it later; None without gradients."""
        if self.grad_norm is not None or not self.grads:
            return self.grad_norm
        norm = GradientNorm(self.grads)
        self._later = ref(norm)
        return norm

    def update_found_inf(self) -> None:
        """Set `found_inf` to the maximum of `found` over all loss scales."""
        if self.found and self.reached:
            first, *others = self.found.values()
            for other in others:
                first = torch.maximum(first, other)
            self.found_inf = first

    def finish_norm(self) -> None:
        """Compute the norm of the last step if its result still exists; release the gradients."""
        if self._later is None:
            return
        norm, self._later = self._later(), None
        if norm is not None:
            norm.compute()

    def zero_grad(self) -> None:
        """Drop the gradients and start a new window."""
        for param in self.params:
            param.grad = None
        self.reset()

    def close(self) -> None:
        """Release the optimizer; later changes of its parameters are ignored."""
        self._closed = True
        self.guard.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the window; gradients are copied because the next step changes them.

        Gradients are lists in the order of `params`.
        """
        params = self.params
        return {
            "micro_steps": self.micro_steps,
            "samples": self.samples,
            "backwards": self.backwards,
            "pending": self.pending,
            "grads": [None if p.grad is None else p.grad.clone() for p in params],
            "true_grads": [
                self.true_grads[p].clone() if p in self.true_grads else None for p in params
            ],
            "found": [[loss_id, found.clone()] for loss_id, found in self.found.items()],
        }

    def load_state_dict(self, state: dict[str, Any], *, counts_samples: bool) -> None:
        """Load the state of a window.

        Args:
            state: The state that `state_dict` returned.
            counts_samples: Whether the saved engine counted samples.
        """
        self.zero_grad()
        self.micro_steps, self.samples = state["micro_steps"], state["samples"]
        self.backwards, self.pending = state["backwards"], state["pending"]
        self.counts_samples = counts_samples and bool(self.backwards)
        device = self.params[0].device
        self.found = {loss_id: found.to(device) for loss_id, found in state["found"]}
        for param, grad, true in zip(self.params, state["grads"], state["true_grads"], strict=True):
            if grad is not None:
                gradients.put(param, grad.to(param.device, copy=True))
            if true is not None:
                self.true_grads[param] = true.to(param.device, copy=True)
        self.show_true_grads()
        self.mark_gradients()

    def _drop_gradients(self, set_to_none: bool = True, **_: Any) -> None:
        """Drop the gradients that the optimizer's own `zero_grad` does not reach."""
        self.refresh()
        for param in self.params:
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad = torch.zeros_like(param.grad)
        self._drop_true_grads()


def _versions(params: Iterable[torch.Tensor]) -> list[tuple[int, int] | None]:
    """Return the identity and version of each gradient, to detect changes to it later."""
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in params]
