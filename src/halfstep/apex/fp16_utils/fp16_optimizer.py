"""`FP16_Optimizer`: wraps an optimizer, with fp32 master weights and its own loss scale.

It creates the master weights at construction. It handles gradients as `amp` does under O2.
"""

# ruff: noqa: SLF001  (the underscored names are Apex's, and programs use them)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.apex.amp._amp_state import maybe_print, say
from halfstep.apex.amp.late_masters import LateMasterWeights
from halfstep.apex.amp.scaler import LossScaler
from halfstep.apex.amp.stash import AmpOptimizerState
from halfstep.apex.fp16_utils.master_params import clip_grad_norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer


class FP16_Optimizer:  # noqa: N801  # Apex's name
    """Wraps an optimizer of a model with half-precision parameters.

    ```python
    optimizer = FP16_Optimizer(optimizer, dynamic_loss_scale=True)
    optimizer.zero_grad()
    optimizer.backward(loss)
    optimizer.step()
    ```

    Args:
        init_optimizer: The optimizer; from now on it updates fp32 master weights.
        static_loss_scale: The loss scale if it is not dynamic.
        dynamic_loss_scale: Whether the loss scale is dynamic, with backoff and growth.
        dynamic_loss_args: Arguments of `amp`'s dynamic scaler: init_scale, scale_factor,
            scale_window, min_loss_scale, max_loss_scale.
        verbose: Whether to print a list of the parameters.

    Attributes:
        overflow: Whether the current gradients have non-finite values; the next step is then
            skipped.
    """

    def __init__(
        self,
        init_optimizer: Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: dict[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        self.optimizer = init_optimizer
        self.verbose = verbose
        self._stash = AmpOptimizerState(LateMasterWeights(None))
        self._stash.sort(init_optimizer)
        init_optimizer.load_state_dict(init_optimizer.state_dict())  # casts half state to fp32
        self._print_params()
        self.dynamic_loss_scale = dynamic_loss_scale
        self.loss_scaler = LossScaler(
            "dynamic" if dynamic_loss_scale else static_loss_scale,
            **(dynamic_loss_args or {} if dynamic_loss_scale else {}),
        )
        self.overflow = False
        self._grads_are_scaled = False
        self.first_closure_call_this_step = True
        self.clip_grad_norm = clip_grad_norm

    def __getstate__(self) -> Any:
        raise RuntimeError("FP16_Optimizer should be serialized using state_dict().")

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("FP16_Optimizer should be deserialized using load_state_dict().")

    @property
    def fp16_groups(self) -> list[list[torch.Tensor]]:
        """The half-precision parameters of each group."""
        return self._stash.fp16_groups

    @property
    def fp32_from_fp16_groups(self) -> list[list[torch.Tensor]]:
        """The master weights of the half-precision parameters of each group."""
        return self._stash.fp32_from_fp16_groups

    @property
    def fp32_from_fp32_groups(self) -> list[list[torch.Tensor]]:
        """The fp32 parameters of each group."""
        return self._stash.fp32_from_fp32_groups

    @property
    def loss_scale(self) -> float:
        """The current loss scale; it may be set."""
        return self.loss_scaler.loss_scale()

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self.loss_scaler._loss_scale = value

    @property
    def state(self) -> Any:
        """The state of the optimizer; it may be set."""
        return self.optimizer.state

    @state.setter
    def state(self, value: Any) -> None:
        self.optimizer.state = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the optimizer, which contain the master weights; they may be set."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = value

    def zero_grad(self, set_grads_to_None: bool = False) -> None:  # noqa: N803  # Apex's name
        """Set the gradients of the model and of the master weights to zeros or to None."""
        for params in (*self.fp16_groups, *(group["params"] for group in self.param_groups)):
            for param in params:
                if set_grads_to_None or param.grad is None:
                    param.grad = None
                else:
                    param.grad.detach_().zero_()

    def backward(
        self, loss: torch.Tensor, update_master_grads: bool = True, retain_graph: bool = False
    ) -> None:
        """Run the backward of the scaled loss.

        Args:
            loss: A scalar, scaled in fp32.
            update_master_grads: Whether to compute the gradients of the master weights now. With
                several losses, set it to True only for the last loss.
            retain_graph: As in `Tensor.backward`.
        """
        if not self._grads_are_scaled:
            self._stash.set_aside()
            self._grads_are_scaled = True
        scaled = loss.float() * self.loss_scaler.loss_scale()
        torch.autograd.backward(scaled, retain_graph=retain_graph)
        if update_master_grads:
            self.update_master_grads()

    def update_master_grads(self) -> None:
        """Unscale the model's gradients into the masters', check them, and update the scale."""
        self.loss_scaler.clear_overflow_state()
        self._stash.drop_master_grads()  # the model's gradients contain all accumulated gradients
        self._stash.finish(self.loss_scaler)
        self._grads_are_scaled = False
        self.overflow = self.loss_scaler.update_scale()

    def clip_master_grads(self, max_norm: float, norm_type: float = 2) -> Any:
        """Clip the gradients of the master weights.

        Returns:
            The norm before clipping; -1 after an overflow.
        """
        if self.overflow:
            return -1
        params = [param for group in self.param_groups for param in group["params"]]
        return self.clip_grad_norm(params, max_norm, norm_type)

    def inspect_master_grad_data(self) -> list[list[torch.Tensor | None]] | None:
        """Return the gradients of the master weights by group; None after an overflow."""
        if self.overflow:
            say(
                "Warning:  calling FP16_Optimizer.inspect_master_grad_data while in an overflow "
                "state.  Gradients are currently invalid (may be inf, nan, or stale).  Returning "
                "None."
            )
            return None
        return [
            [None if param.grad is None else param.grad.detach() for param in group["params"]]
            for group in self.param_groups
        ]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step and round the master weights into the model; skip it after an overflow.

        Args:
            closure: Zeroes gradients, calls `backward` of this object and returns the loss. As long
                as its gradients overflow, it is called again.
        """
        if self.overflow and closure is None:
            maybe_print(
                f"Gradient overflow.  Skipping step, reducing loss scale to {self.loss_scale}"
            )
            return None
        result = self.optimizer.step() if closure is None else self._step_with(closure)
        self._stash.copy_masters_to_model()
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scaler, the state of the optimizer and the master weights."""
        return {
            "loss_scaler": self.loss_scaler,
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "overflow": self.overflow,
            "first_closure_call_this_step": self.first_closure_call_this_step,
            "optimizer_state_dict": self.optimizer.state_dict(),
            "fp32_from_fp16": self.fp32_from_fp16_groups,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of `state_dict`; the parameters of the model are loaded separately."""
        self.loss_scaler = state_dict["loss_scaler"]
        self.dynamic_loss_scale = state_dict["dynamic_loss_scale"]
        self.overflow = state_dict["overflow"]
        self.first_closure_call_this_step = state_dict["first_closure_call_this_step"]
        self.optimizer.load_state_dict(state_dict["optimizer_state_dict"])
        with torch.no_grad():
            for group, saved in zip(
                self.fp32_from_fp16_groups, state_dict["fp32_from_fp16"], strict=True
            ):
                for master, value in zip(group, saved, strict=True):
                    master.copy_(value)

    def _step_with(self, closure: Callable[[], Any]) -> Any:
        def until_finite() -> Any:
            if self.first_closure_call_this_step:
                self.first_closure_call_this_step = False
            else:
                self._stash.copy_masters_to_model()  # the optimizer has updated the masters since
            loss = closure()
            while self.overflow:
                say(
                    "OVERFLOW within closure! Skipping step, reducing loss scale to "
                    f"{self.loss_scale}"
                )
                if self.loss_scale <= self.loss_scaler.floor():
                    raise RuntimeError(
                        f"gradients of the closure are not finite at a loss scale of "
                        f"{self.loss_scale:g}, its floor; look for inf or NaN in the data or the "
                        "loss"
                    )
                loss = closure()
            return loss

        try:
            return self.optimizer.step(until_finite)
        finally:
            self.first_closure_call_this_step = True

    def _print_params(self) -> None:
        if not self.verbose:
            return
        for number, (halves, singles) in enumerate(
            zip(self.fp16_groups, self.fp32_from_fp32_groups, strict=True)
        ):
            say(f"FP16_Optimizer processing param group {number}:")
            for param in (*halves, *singles):
                say(f"FP16_Optimizer received {param.type()} with {param.size()}")
