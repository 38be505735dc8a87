"""LARC: a learning rate for each layer, from the ratio of the norms of its weights and gradients.

You et al., "Large Batch Training of Convolutional Networks" (arXiv:1708.03888), equation 6, and its
clipped variant. It wraps any optimizer: instead of learning rates it changes the gradients, so that
the optimizer's own update does the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable


class LARC(Optimizer):
    """Wraps an optimizer and shares its parameter groups, state and checkpoints.

    Args:
        optimizer: The optimizer that makes the step, with the gradients scaled by this wrapper.
        trust_coefficient: Learning rate of a layer, relative to the ratio of norms.
        clip: Whether a layer's learning rate is the smaller one of this rate and the optimizer's
            (LARC), instead of their product (LARS).
        eps: Added to the norms in the denominator.
    """

    optim: Optimizer
    trust_coefficient: float
    clip: bool
    eps: float

    def __init__(
        self,
        optimizer: Optimizer,
        trust_coefficient: float = 0.02,
        clip: bool = True,
        eps: float = 1e-8,
    ) -> None:
        # Not super().__init__: groups and state stay with the wrapped optimizer.
        own = {
            "optim": optimizer,
            "defaults": optimizer.defaults,
            "trust_coefficient": trust_coefficient,
            "clip": clip,
            "eps": eps,
        }
        super().__setstate__(own)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # an attribute of torch's
        """The groups of the wrapped optimizer."""
        return self.optim.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.optim.param_groups = groups

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer."""
        return self.optim.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optim.state = state

    def __getstate__(self) -> dict[str, Any]:
        names = ("optim", "defaults", "trust_coefficient", "clip", "eps")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return repr(self.optim)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer."""
        return self.optim.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the wrapped optimizer."""
        self.optim.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        self.optim.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to the wrapped optimizer."""
        self.optim.add_param_group(param_group)

    def step(  # type: ignore[override]  # torch's overloads say the same in two signatures
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Scale the gradients and let the wrapped optimizer step without a decay of its own."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        decays = [group.get("weight_decay", 0.0) for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays, strict=True):
            self._scale(group, decay)
        for group in self.param_groups:
            group["weight_decay"] = 0.0
        try:
            self.optim.step()
        finally:
            for group, decay in zip(self.param_groups, decays, strict=True):
                group["weight_decay"] = decay
        return loss

    @torch.no_grad()
    def _scale(self, group: dict[str, Any], decay: float) -> None:
        """Scale gradients in place; the device is not waited for."""
        for param in group["params"]:
            if param.grad is None:
                continue
            wide = torch.promote_types(param.dtype, torch.float32)
            weight_norm = torch.linalg.vector_norm(param, dtype=wide)
            grad_norm = torch.linalg.vector_norm(param.grad, dtype=wide)
            rate = self.trust_coefficient * weight_norm
            rate = rate / (grad_norm + weight_norm * decay + self.eps)
            if self.clip:
                rate = (rate / group["lr"]).clamp(max=1.0)
            scaled = (param.grad + decay * param) * rate.to(param.grad.dtype)
            defined = (weight_norm > 0) & (grad_norm > 0)
            param.grad.copy_(torch.where(defined, scaled, param.grad))
