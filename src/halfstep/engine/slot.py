"""What the engine knows of one optimizer: its parameters, and the accumulation window it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.engine.guard import StepGuard
from halfstep.techniques.gradients import put_grad

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from torch.optim import Optimizer

    from halfstep.techniques import Technique


class Slot:
    """One optimizer, its guard and its window.

    Args:
        optimizer: The optimizer, already prepared by the techniques.
        techniques: Those techniques.

    Attributes:
        guard: Opened while the engine itself steps the optimizer.
        fused_momentum: Whether it is a fused SGD with momentum, whose first step needs care.
        micro_steps: Micro-steps taken in the window.
        samples: Samples seen in the window, where they are counted; a mean over processes after
            a window of several was resumed.
        backwards: Backward passes that may have reached the parameters in the window.
        pending: Whether a backward came since the last call of `engine.step()`.
        true_grads: fp32 gradients of losses with a scale of their own, already unscaled. Between
            calls of the engine `.grad` shows them where it would be empty.
        found: Whether those were not finite: a scalar for each such loss.
        counted: Losses whose scale has taken account of that already.
    """

    def __init__(self, optimizer: Optimizer, techniques: Sequence[Technique]) -> None:
        self.optimizer = optimizer
        self.guard = StepGuard(optimizer, self._drop_grads)
        self.fused_momentum = _fused_sgd_momentum(optimizer)
        self._techniques = techniques
        self._group_sizes: list[int] = []
        self._params: list[torch.Tensor] = []
        self._touched_at: list[tuple[int, int] | None] = []
        self.reset()

    def reset(self) -> None:
        """Start a new window."""
        self.micro_steps = 0
        self.samples: float = 0
        self.backwards = 0
        self.pending = False
        self._held = False
        self._drop_true_grads()

    def _drop_true_grads(self) -> None:
        self.true_grads: dict[torch.Tensor, torch.Tensor] = {}
        self.found: dict[Hashable, torch.Tensor] = {}
        self.counted: set[Hashable] = set()

    @property
    def params(self) -> list[torch.Tensor]:
        """The model's parameters that this optimizer updates, in its order."""
        sizes = [len(group["params"]) for group in self.optimizer.param_groups]
        if sizes != self._group_sizes:
            for technique in self._techniques:
                technique.adopt(self.optimizer)
            held = [p for group in self.optimizer.param_groups for p in group["params"]]
            for technique in self._techniques:
                held = technique.model_params(held)
            self._params, self._group_sizes = held, sizes
        return self._params

    def holds_gradients(self) -> bool:
        """Tell whether any parameter has a gradient that was not used yet."""
        return any(param.grad is not None for param in self.params)

    def show_true_grads(self) -> None:
        """Let `.grad` hold them where it is empty, so that whoever drops it drops them too."""
        for param, true in self.true_grads.items():
            if param.grad is None:
                put_grad(param, true)

    def hide_true_grads(self) -> None:
        """Keep them out of `.grad`, and drop those that were dropped from there."""
        there = dict(self.true_grads)
        for param, true in there.items():
            if param.grad is None:
                del self.true_grads[param]
            elif param.grad is true:
                param.grad = None
        if there and not self.true_grads:
            self._drop_true_grads()  # what was found in them too

    def _drop_grads(self, set_to_none: bool = True, **_: Any) -> None:
        """Drop what the optimizer's own `zero_grad` does not know of."""
        for param in self.params:
            if set_to_none:
                param.grad = None
            elif param.grad is not None:
                param.grad = torch.zeros_like(param.grad)
        self._drop_true_grads()

    def zero_grad(self) -> None:
        """Drop the gradients and start a new window."""
        for param in self.params:
            param.grad = None
        self.reset()

    def lost_gradients(self) -> bool:
        """Tell whether gradients that a backward left in this window are gone."""
        return self._held and not self.holds_gradients()

    def after_backward(self, *, scaled: bool) -> None:
        """Note a backward that may have reached the parameters.

        Args:
            scaled: Whether the gradients are multiplied by a loss scale, and so are not to be
                changed by anybody else.
        """
        self.show_true_grads()
        self.pending = True
        self.backwards += 1
        self._held = self.holds_gradients()
        if scaled:
            self.mark_gradients()

    def mark_gradients(self) -> None:
        """Remember which gradients there are, to notice when somebody else changes them."""
        self._touched_at = _versions(self.params)

    def touched(self) -> bool:
        """Tell whether gradients changed since `mark_gradients`."""
        return bool(self._touched_at) and self._touched_at != _versions(self.params)

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

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a window."""
        self.zero_grad()
        self.micro_steps, self.samples = state["micro_steps"], state["samples"]
        self.backwards, self.pending = state["backwards"], state["pending"]
        device = self.params[0].device
        self.found = {loss_id: found.to(device) for loss_id, found in state["found"]}
        for param, grad, true in zip(self.params, state["grads"], state["true_grads"], strict=True):
            if grad is not None:
                put_grad(param, grad.to(param.device, copy=True))
            if true is not None:
                self.true_grads[param] = true.to(param.device, copy=True)
        self.show_true_grads()
        self.mark_gradients()


def _fused_sgd_momentum(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SGD) and any(
        group["fused"] and group["momentum"] for group in optimizer.param_groups
    )


def start_momentum(optimizer: Optimizer) -> bool:
    """Give a fused SGD the momentum buffers that its kernel leaves uninitialised.

    Its first step allocates them and returns early when a gradient is not finite; what was in that
    memory is then taken for momentum (torch 2.11 to 2.15). Zeros give the same first step, unless
    dampening is used, which the first step leaves out.

    Returns:
        Whether the buffers are now there; if not, the step must be skipped from the host.
    """
    ready = True
    for group in optimizer.param_groups:
        for param in group["params"] if group["momentum"] else ():
            state = optimizer.state[param]
            if state.get("momentum_buffer") is None:
                if group["dampening"]:
                    ready = False
                else:
                    state["momentum_buffer"] = torch.zeros_like(param)
    return ready


def _versions(params: Iterable[torch.Tensor]) -> list[tuple[int, int] | None]:
    """Return what tells whether a gradient was replaced or written to since."""
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in params]
