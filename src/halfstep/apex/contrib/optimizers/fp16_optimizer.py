"""`apex.contrib.optimizers.FP16_Optimizer`: as in `fp16_utils`, with other defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.apex import fp16_utils

if TYPE_CHECKING:
    from torch.optim import Optimizer


class FP16_Optimizer(fp16_utils.FP16_Optimizer):  # noqa: N801  # Apex's name
    """Wraps an optimizer of a model with half-precision parameters.

    See `fp16_utils.FP16_Optimizer`. A dynamic loss scale starts at 65536 and grows after 1000 steps
    with finite gradients.

    Args:
        init_optimizer: The optimizer; from now on it updates fp32 master weights.
        static_loss_scale: The loss scale if it is not dynamic.
        dynamic_loss_scale: Whether the loss scale is dynamic, with backoff and growth.
        dynamic_loss_args: Refused, as in Apex.
        verbose: Whether to print a list of the parameters.

    Raises:
        SystemError: If `dynamic_loss_args` is given.
    """

    def __init__(
        self,
        init_optimizer: Optimizer,
        static_loss_scale: float = 1.0,
        dynamic_loss_scale: bool = False,
        dynamic_loss_args: dict[str, Any] | None = None,
        verbose: bool = True,
    ) -> None:
        if dynamic_loss_args is not None:
            raise SystemError(
                "Do not support dynamic loss scale args for now; leave dynamic_loss_args out, or "
                "write apex.fp16_utils.FP16_Optimizer, which takes them"
            )
        settings = {"init_scale": 2.0**16, "scale_window": 1000} if dynamic_loss_scale else None
        super().__init__(init_optimizer, static_loss_scale, dynamic_loss_scale, settings, verbose)

    @property
    def cur_scale(self) -> float:
        """The current loss scale."""
        return self.loss_scale

    def zero_grad(self, set_grads_to_None: bool = True) -> None:  # noqa: N803  # Apex's name
        """Set the gradients to None, or fill them with zeros."""
        super().zero_grad(set_grads_to_None)
