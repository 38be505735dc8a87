"""The base class of Apex's optimizers: `set_grad_none`, and a `step` that refuses old arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.errors import closest
from halfstep.optim.foreach import ForeachOptimizer

if TYPE_CHECKING:
    from collections.abc import Callable


GONE = ("grads", "output_params", "scale", "grad_norms", "grad_scaler")


class FusedOptimizer(ForeachOptimizer):
    """An optimizer with Apex's conventions.

    `torch.amp.GradScaler` and the engine set `grad_scale` and `found_inf` on the optimizer. torch's
    fused kernels use them to unscale the gradients and to skip a step on the device.

    Attributes:
        set_grad_none: Whether `zero_grad()` sets gradients to None, instead of filling them with
            zeros.
    """

    set_grad_none = True

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Set the gradients to None or to zeros; by default, `set_grad_none` decides."""
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def step(  # type: ignore[override]  # as in the class below it
        self, closure: Callable[[], float] | None = None, **given: Any
    ) -> float | None:
        """Take one step.

        Args:
            closure: Evaluates the loss again and returns it.
            given: Arguments of earlier versions of Apex's `step`; refused unless None.

        Raises:
            RuntimeError: If such an argument is given, or a gradient is sparse.
            TypeError: If no version of Apex's `step` had such an argument.
        """
        name = type(self).__name__
        for argument, value in given.items():
            if argument not in GONE:
                raise TypeError(
                    f"{name}.step() has no argument {argument!r}; allowed: closure"
                    f"{closest(argument, ('closure', *GONE))}"
                )
            if value is not None:
                instead = "scaler.step(optimizer)" if argument == "grad_scaler" else "step()"
                raise RuntimeError(
                    f"{name} has been updated: step() takes no {argument}; write {instead}"
                )
        return super().step(closure)

    def skip_on_device(self) -> dict[str, Any]:
        """Return the arguments with which a fused kernel unscales gradients and skips the step."""
        return {
            "grad_scale": getattr(self, "grad_scale", None),
            "found_inf": getattr(self, "found_inf", None),
        }


def refuse_amsgrad(name: str, *, amsgrad: bool) -> None:
    """Refuse the AMSGrad variant, as Apex does."""
    if amsgrad:
        raise RuntimeError(
            f"{name} does not support the AMSGrad variant; write torch.optim.AdamW(amsgrad=True)"
        )
