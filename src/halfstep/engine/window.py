"""One optimizer and its accumulation window: what backwards leave until the window closes."""

from __future__ import annotations

from contextlib import ExitStack
from operator import is_
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from halfstep.engine.closure import needs_closure
from halfstep.engine.guard import StepGuard
from halfstep.engine.norm import GradientNorm, is_steady
from halfstep.engine.parallel.shards import local
from halfstep.engine.result import OptimizerStep
from halfstep.kernels import gradients
from halfstep.optim.zero import local_optimizer

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torch.optim import Optimizer

    from halfstep.engine.average import WeightAverage
    from halfstep.techniques import Technique


class Window:
    """One optimizer, its guard, and the accumulation window that it is in.

    Args:
        optimizer: The optimizer, not yet prepared by the techniques.
        techniques: Those techniques.

    Attributes:
        needs_closure: Whether the optimizer evaluates the loss inside its step.
        guard: Entered while the engine itself steps the optimizer.
        average: The average of the weights, if one is kept.
        params: The model's parameters that the optimizer updates, in its order, as of `refresh`.
        micro_steps: Micro-steps taken in the window.
        counts_samples: Whether samples are counted in the window.
        samples: Samples seen in the window; a mean over processes after a window of several was
            resumed.
        backwards: Backward passes that may have reached the parameters in the window.
        pending: Whether a backward came since the last call of `engine.step()`.
        true_grads: fp32 gradients of losses with a scale of their own, already unscaled. Between
            calls of the engine `.grad` shows them where it would be empty.
        found: By the name of a loss scale, whether gradients made with it were not finite: a
            scalar. The shared scale is there from unscaling on.
        counted: Losses whose scale has taken account of that already.
        remaining_weight: Multiplies the gradients when the window closes; 1 for a full window.
        full_samples: Samples of a full window on one process, where the remaining weight follows
            from the samples of all processes; else None.
        reached: The parameters that had a gradient when the window closed.
        each_norm: 2-norm of each true gradient before clipping; None without any, and where the
            step does not need it.
        grad_norm: 2-norm over all of them; None likewise.
        found_inf: Whether one was not finite; None where nobody looked.
        loss_scale: The shared scale that the gradients were made with; None without one.
    """

    def __init__(self, optimizer: Optimizer, techniques: Sequence[Technique]) -> None:
        self.optimizer = optimizer
        self.needs_closure = needs_closure(optimizer)
        self.guard = StepGuard(optimizer, self._drop_gradients)
        self.average: WeightAverage | None = None
        self.params: list[torch.Tensor] = []
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
        self.each_norm: torch.Tensor | None = None
        self.grad_norm: torch.Tensor | None = None
        self.found_inf: torch.Tensor | None = None
        self.loss_scale: torch.Tensor | None = None

    def _drop_true_grads(self) -> None:
        self.true_grads: dict[torch.Tensor, torch.Tensor] = {}
        self.found: dict[Hashable, torch.Tensor] = {}
        self.counted: set[Hashable] = set()

    def refresh(self) -> None:
        """Take in parameters that were added to the optimizer, or replaced in it."""
        if self.is_as_held() or self._closed:
            return
        for technique in self._techniques:
            technique.adopt(self.optimizer)
        self._held = [list(group["params"]) for group in self.optimizer.param_groups]
        params = [param for held in self._held for param in held]
        for technique in self._techniques:
            params = technique.model_params(params)
        self.params = params

    def is_as_held(self) -> bool:
        """Tell whether the optimizer holds the parameters that it held at the last `refresh`."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self._held):
            return False
        for group, held in zip(groups, self._held, strict=True):
            params = group["params"]
            if len(params) != len(held) or not all(map(is_, params, held)):
                return False
        return True

    def load_optimizer(self, saved: dict[str, Any] | None) -> None:
        """Load the state of the optimizer, in the formats that the techniques keep it in.

        Raises:
            ValueError: If there is none.
        """
        if saved is None:
            raise ValueError(
                "the state of a ZeroRedundancyOptimizer is complete on rank 0 only; load the state "
                "of rank 0 on every process"
            )
        self._load(self.optimizer, saved)

    def recast_optimizer(self) -> None:
        """Give the state that the optimizer has the formats that the techniques keep it in."""
        local = local_optimizer(self.optimizer)
        if local.state:
            self._load(local, local.state_dict())

    def _load(self, optimizer: Optimizer, saved: dict[str, Any]) -> None:
        with ExitStack() as stack:
            for technique in self._techniques:
                stack.enter_context(technique.loading(optimizer))
            optimizer.load_state_dict(saved)

    @property
    def dense_gradients(self) -> list[torch.Tensor]:
        """The part of each gradient that this process holds; of a sparse one, its values."""
        return [local(grad) for grad in gradients.dense(self.params)]

    @property
    def holds_gradients(self) -> bool:
        """Whether any parameter has a gradient that was not used yet."""
        for param in self.params:  # noqa: SIM110  (each backward asks, and a generator takes longer)
            if param.grad is not None:
                return True
        return False

    @property
    def lost_gradients(self) -> bool:
        """Whether gradients that a backward left in this window are gone."""
        return self._had_gradients and not self.holds_gradients

    @property
    def is_touched(self) -> bool:
        """Whether gradients changed since `mark_gradients`."""
        return bool(self._versions) and self._versions != _versions(self.params)

    def show_true_grads(self) -> None:
        """Let `.grad` hold them where it is empty, so that whoever drops it drops them too."""
        for param, true in self.true_grads.items():
            if param.grad is None:
                gradients.put(param, true)

    def hide_true_grads(self) -> None:
        """Keep them out of `.grad`, and drop those that were dropped from there."""
        if not self.true_grads:
            return
        there = dict(self.true_grads)
        for param, true in there.items():
            if param.grad is None:
                del self.true_grads[param]
            elif param.grad is true:
                param.grad = None
        if not self.true_grads:
            self._drop_true_grads()  # what was found in them too

    def after_backward(self, *, scaled: bool) -> None:
        """Note a backward that may have reached the parameters.

        Args:
            scaled: Whether the gradients are multiplied by a loss scale, and so are not to be
                changed by anybody else.
        """
        if self.true_grads:
            self.show_true_grads()
        self.pending = True
        self.backwards += 1
        self._had_gradients = self.holds_gradients
        if scaled:
            self.mark_gradients()

    def mark_gradients(self) -> None:
        """Remember which gradients there are, to notice when somebody else changes them."""
        self._versions = _versions(self.params)

    def end_micro_step(self) -> None:
        """Count a micro-step; the next one needs a backward of its own."""
        self.micro_steps += 1
        self.pending = False

    def measure(self, *, now: bool) -> None:
        """Take the norms of the true gradients, and whether one was not finite.

        Args:
            now: Whether the step needs the norms; else they wait until somebody reads them.
        """
        self.reached = [param for param in self.params if param.grad is not None]
        self.update_found_inf()
        if not self.reached or not (now or not self.norm_can_wait):
            return
        self.each_norm = gradients.norms(self.dense_gradients)
        self.grad_norm = torch.linalg.vector_norm(self.each_norm)

    @property
    def norm_can_wait(self) -> bool:
        """Whether the optimizer surely writes to no gradient, as none of its steps has."""
        return self._keeps_gradients is True and is_steady(self.optimizer)

    @property
    def learns(self) -> bool:
        """Whether it is not known yet if a step of the optimizer writes to gradients."""
        return self._keeps_gradients is None

    def about_to_step(self) -> None:
        """Note the gradients before the first step, to learn whether it writes to them."""
        self._before_step = _versions(self.params)

    def has_stepped(self) -> None:
        """Note what it has written to."""
        self._keeps_gradients = self._before_step == _versions(self.params)
        self._before_step = []

    def wait_for(self, norm: GradientNorm) -> None:
        """Take note of a norm that has the gradients of the step."""
        self._later = ref(norm)

    def update_found_inf(self) -> None:
        """Bring together what was found under each loss scale."""
        if self.found and self.reached:
            first, *others = self.found.values()
            for other in others:
                first = torch.maximum(first, other)
            self.found_inf = first

    def snapshot(self, *, by_closure: bool) -> OptimizerStep:
        """Return what the optimizer does in this step.

        Args:
            by_closure: Whether the optimizer makes its gradients itself.
        """
        norm: torch.Tensor | GradientNorm | None = self.grad_norm
        if norm is None and self.reached:
            norm = GradientNorm([param.grad for param in self.reached if param.grad is not None])
            self.wait_for(norm)
        return OptimizerStep(
            closed=True,
            has_gradients=bool(self.reached) or by_closure,
            _found_inf=self.found_inf,
            _grad_norm=norm,
            _loss_scale=self.loss_scale,
        )

    def finish_norm(self) -> None:
        """Compute the norm of the step before, if its result is kept, and let its gradients go."""
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
        """Give the optimizer back; parameters that change hands from now on are not followed."""
        self._closed = True
        self.guard.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the window as it stands; gradients are copied, as the next step changes them."""
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
        """Take over a window.

        Args:
            state: What `state_dict` returned.
            counts_samples: Whether the engine that was saved counted samples.
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
        """Drop what the optimizer's own `zero_grad` does not know of."""
        self.refresh()
        for param in self.params:
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad = torch.zeros_like(param.grad)
        self._drop_true_grads()


def _versions(params: Iterable[torch.Tensor]) -> list[tuple[int, int] | None]:
    """Return what tells whether a gradient was replaced or written to since."""
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in params]
