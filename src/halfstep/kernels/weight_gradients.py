"""Gradients of large half weights, rounded in place if autograd would widen them again.

The backward of a convolution computes the weight gradient in fp32, and has to return it in the half
format of the weight. Under autocast the parameter is fp32, so the next node casts the gradient back
to fp32. A half parameter may also have `grad_dtype` fp32. In both cases, the next node gets the
fp32 tensor itself, with its values rounded to the half format. This takes one pass over memory
instead of two, and no allocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from halfstep.kernels.native.half import round_to_half

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SMALLEST = 1 << 16
"""Elements below which PyTorch's two casts are faster than finding the gradient's next node."""


_CAST = torch.ops.aten._to_copy.default  # noqa: SLF001  # what `Tensor.to` calls


class Rounded(torch.Tensor):
    """A half gradient whose memory is not written yet, with an fp32 copy of its values.

    The first cast to fp32 returns the copy. Any other use writes the half numbers first.

    Attributes:
        wide: The values in fp32; None once the half numbers are written.
        given: Whether a cast has returned the copy. Nobody writes into the copy while this tensor
            exists: autograd reuses the memory of a gradient only if nothing else refers to it.
    """

    wide: torch.Tensor | None
    given: bool

    @classmethod
    def of(cls, wide: torch.Tensor, dtype: torch.dtype) -> Rounded:
        """Return `wide` as a tensor of `dtype`; the values must already be rounded to `dtype`."""
        narrow = torch.empty_like(wide, dtype=dtype)
        rounded = torch.Tensor._make_subclass(cls, narrow)  # noqa: SLF001  # no public name
        rounded.wide, rounded.given = wide, False
        return rounded

    def write(self) -> None:
        """Write the half numbers, unless they are already written."""
        wide, self.wide = self.wide, None
        if wide is None:
            return
        with torch._C._DisableTorchDispatch(), torch.no_grad():  # noqa: SLF001  # no public name
            self.copy_(wide)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves out `func`
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the copy for the first cast to fp32; run any other call on the half numbers."""
        del types
        kwargs = kwargs or {}
        if func is _CAST and kwargs.get("dtype") is torch.float32:
            (rounded,) = args
            wide = rounded.wide
            if (
                wide is not None
                and not rounded.given
                and kwargs.get("device", wide.device) == wide.device
            ):
                rounded.given = True
                return wide
        for arg in tree_leaves((args, kwargs)):
            if isinstance(arg, Rounded):
                arg.write()
        with torch._C._DisableTorchDispatch():  # noqa: SLF001  # no public name
            return func(*args, **kwargs)


def weight_gradient(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round the fp32 weight gradient of the convolution whose backward is running.

    Args:
        grad: fp32 tensor of any shape. It may be overwritten, so no other code may read it.
        dtype: The half format of the weight.

    Returns:
        `grad.to(dtype)`. If the next node needs fp32, these rounded values are in fp32, or in a
        `Rounded` tensor that contains them in fp32.
    """
    if grad.numel() < SMALLEST:
        return grad.to(dtype)
    taker = _taker()
    if taker is None:
        narrow = torch.empty_like(grad, dtype=dtype)
        return narrow if round_to_half(grad, dtype, narrow=narrow) else narrow.copy_(grad)
    if not round_to_half(grad, dtype, wide=grad):
        return grad.to(dtype)
    return grad if taker == "AccumulateGrad" else Rounded.of(grad, dtype)


def _taker() -> str | None:
    """Return the class name of the node that receives the gradient, if it needs fp32; else None.

    Return None also under `create_graph`, because the rounding is then differentiated, outside an
    eager backward, and if `autograd.grad` may return the half gradient itself.
    """
    node = torch._C._current_autograd_node()  # noqa: SLF001  # no public name
    if torch.is_grad_enabled() or type(node).__name__ != "ConvolutionBackward0":
        return None
    taker, _ = node.next_functions[1]
    kind = type(taker).__name__
    if kind == "ToCopyBackward0":
        return kind if _passes_on(taker) else None
    parameter = getattr(taker, "variable", None)  # only AccumulateGrad has it
    return kind if parameter is not None and parameter.grad_dtype == torch.float32 else None


def _passes_on(cast: Any) -> bool:
    """Tell whether the backward of a cast receives the gradient, and not `autograd.grad`."""
    ((parameter, _),) = cast.next_functions
    try:
        return torch._C._will_engine_execute_node(parameter)  # noqa: SLF001  # no public name
    except RuntimeError:  # inside `autograd.grad`, which returns the parameter's gradient
        return False
