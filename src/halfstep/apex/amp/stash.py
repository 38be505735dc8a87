"""The state that `initialize` attaches to an optimizer: master weights, and gradients by loss.

The fp32 master weights are created at the first use. From `prepare` to `finish` of one loss, the
gradients of earlier losses are set aside. So each gradient is unscaled once, by its own loss scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep.formats.dtypes import HALVES
from halfstep.kernels.gradients import put, wide

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer

    from halfstep.apex.amp.interfaces import Scaler
    from halfstep.mechanisms.master_weights.technique import MasterWeights

Params = list[torch.Tensor]


class AmpOptimizerState:
    """The `_amp_stash` of one optimizer.

    Args:
        masters: Creates the master weights of the optimizer; None if it updates the model's own
            parameters.

    Attributes:
        lazy_init_called: Whether `sort` has filled the lists of parameters.
        already_patched: Whether the next step is to be skipped.
        params_have_scaled_gradients: Whether the gradients were left scaled (`delay_unscale`).
        unscaled_by: The loss scale that unscaled the gradients of the next step; None after a step.
        skip_message: Returns the message to print when the step is skipped.
        all_fp16_params: The model's half-precision parameters, in fp16 or bf16.
        all_fp32_from_fp16_params: The masters of `all_fp16_params`, in the same order; empty
            without masters.
        all_fp32_from_fp32_params: Parameters without a master, if the optimizer uses masters.
        all_fp32_params: fp32 parameters, if the optimizer does not use masters.
    """

    def __init__(self, masters: MasterWeights | None) -> None:
        self._masters = masters
        self.lazy_init_called = False
        self.already_patched = False
        self.params_have_scaled_gradients = False
        self.unscaled_by: Scaler | None = None
        self.skip_message: Callable[[], str] = str
        self.fp16_groups: list[Params] = []
        self.fp32_from_fp16_groups: list[Params] = []
        self.fp32_from_fp32_groups: list[Params] = []
        self.all_fp16_params: Params = []
        self.all_fp32_from_fp16_params: Params = []
        self.all_fp32_from_fp32_params: Params = []
        self.all_fp32_params: Params = []
        self._set_aside: dict[torch.Tensor, torch.Tensor] = {}

    @property
    def reached(self) -> Params:
        """Parameters in whose `.grad` a backward accumulates."""
        return [*self.all_fp16_params, *self.own_params] if self._masters else self.own_params

    @property
    def own_params(self) -> Params:
        """Parameters whose `.grad` is unscaled in place."""
        if self._masters:
            return self.all_fp32_from_fp32_params
        return [*self.all_fp16_params, *self.all_fp32_params]

    def sort(self, optimizer: Optimizer) -> None:
        """Create missing masters, and fill the lists with the parameters of `optimizer`."""
        for group in optimizer.param_groups:
            for param in group["params"]:
                _refuse_format(param)
        if self._masters:
            self._masters.adopt(optimizer)
            self._sort_into_groups(optimizer, self._masters)
        else:
            params = [param for group in optimizer.param_groups for param in group["params"]]
            self.all_fp16_params = [param for param in params if param.dtype in HALVES]
            self.all_fp32_params = [param for param in params if param.dtype not in HALVES]
        self.lazy_init_called = True

    def copy_masters_to_model(self) -> None:
        """Round the masters into the model's parameters."""
        if self.all_fp16_params and self._masters:
            with torch.no_grad():
                torch._foreach_copy_(self.all_fp16_params, self.all_fp32_from_fp16_params)

    def drop_master_grads(self) -> None:
        """Set the masters' gradients to None; the model's `zero_grad` does not reach them."""
        for master in self.all_fp32_from_fp16_params:
            master.grad = None

    def zero_grad(self, *, set_to_none: bool) -> None:
        """Fill the model's gradients with zeros or set them to None; set the masters' to None."""
        for param in (*self.all_fp16_params, *self.own_params):
            if param.grad is None:
                continue
            if set_to_none:
                param.grad = None
            else:
                param.grad.detach_().zero_()
        self.drop_master_grads()

    def mark_skip(self, scaler: Scaler, loss_id: int) -> None:
        """Mark the next step to be skipped; the message names the first loss that overflowed."""
        if self.already_patched:
            return
        self.already_patched = True
        self.skip_message = lambda: (
            f"Gradient overflow.  Skipping step, loss scaler {loss_id} reducing loss scale to "
            f"{scaler.loss_scale()}"
        )

    def prepare(self) -> None:
        """Set the gradients of earlier losses aside."""
        if self._masters:
            for param in self.all_fp16_params:
                param.grad = None  # already added to the gradient of its master
        self.set_aside()

    def set_aside(self) -> None:
        """Set aside the gradients of earlier losses that were unscaled in place."""
        self._set_aside = {p: p.grad for p in self.own_params if p.grad is not None}
        for param in self.own_params:
            param.grad = None

    @torch.no_grad()
    def finish(self, scaler: Scaler) -> None:
        """Unscale the gradients of one loss, and add them to the gradients of earlier losses."""
        halves = zip(self.all_fp16_params, self.all_fp32_from_fp16_params, strict=False)
        to_masters = [(m, p.grad.float()) for p, m in halves if p.grad is not None]
        in_place = [
            (p, p.grad.to(wide(p.grad.dtype))) for p in self.own_params if p.grad is not None
        ]
        grads = [grad for _, grad in (*to_masters, *in_place)]
        scaler.unscale_([grad._values() if grad.is_sparse else grad for grad in grads])
        for master, grad in to_masters:
            master.grad = grad if master.grad is None else master.grad.add_(grad)
        for param, grad in in_place:
            earlier = self._set_aside.pop(param, None)
            if earlier is not None:
                grad.add_(earlier)
            put(param, grad.to(param.dtype))
        for param, earlier in self._set_aside.items():
            param.grad = earlier
        self._set_aside = {}

    def _sort_into_groups(self, optimizer: Optimizer, masters: MasterWeights) -> None:
        self.fp16_groups, self.fp32_from_fp16_groups, self.fp32_from_fp32_groups = [], [], []
        for group in optimizer.param_groups:
            sources = dict(zip(group["params"], masters.model_params(group["params"]), strict=True))
            stood_for = {master: param for master, param in sources.items() if master is not param}
            self.fp16_groups.append(list(stood_for.values()))
            self.fp32_from_fp16_groups.append(list(stood_for))
            self.fp32_from_fp32_groups.append([p for p in group["params"] if p not in stood_for])
        self.all_fp16_params = [p for group in self.fp16_groups for p in group]
        self.all_fp32_from_fp16_params = [p for group in self.fp32_from_fp16_groups for p in group]
        self.all_fp32_from_fp32_params = [p for group in self.fp32_from_fp32_groups for p in group]


def _refuse_format(param: torch.Tensor) -> None:
    if param.dtype != torch.float32 and param.dtype not in HALVES:
        # Module.float() leaves complex parameters as they are.
        instead = "" if param.is_complex() else "model.float() before amp.initialize, or "
        raise TypeError(
            "Optimizer's parameters must be either torch.cuda.FloatTensor or "
            f"torch.cuda.HalfTensor. Received {param.type()} of shape {tuple(param.shape)}; write "
            f"{instead}an optimizer of its own for that parameter, which amp leaves alone"
        )
