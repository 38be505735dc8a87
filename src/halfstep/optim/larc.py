"""LARC: a learning rate for each layer, from the ratio of the norms of its weights and gradients.

You et al., "Large Batch Training of Convolutional Networks" (arXiv:1708.03888), equation 6, and its
clipped variant. LARC wraps any optimizer. It scales the gradients instead of the learning rates, so
that it works with the update of every optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable


class LARC(Optimizer):
    """Wraps an optimizer and shares its parameter groups, state and state dict.

    Args:
        optimizer: The optimizer that takes the step, after this wrapper has scaled the gradients.
        trust_coefficient: The local rate of a layer is this factor times the norm of the weights,
            divided by the norm of the gradients.
        clip: Whether the learning rate of a layer is the smaller one of its local rate and the
            optimizer's learning rate (LARC), instead of their product (LARS).
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
        # super().__init__ would create groups and state, which belong to the wrapped optimizer.
        own = {
            "optim": optimizer,
            "defaults": optimizer.defaults,
            "trust_coefficient": trust_coefficient,
            "clip": clip,
            "eps": eps,
        }
        super().__setstate__(own)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # torch has an attribute instead
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
        """Scale the gradients, then step the wrapped optimizer without its weight decay.

        The scaled gradients already contain the weight decay.
        """
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
        """Scale the gradients of a group in place, without waiting for the device."""
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
