"""Gradients of large half weights, rounded in place where autograd widens them again.

A convolution's backward computes them in fp32 and has to return them in the half format of the
weight. Under autocast the next node casts them to fp32, as the parameter is fp32; a half parameter
may have asked for fp32 gradients (`grad_dtype`). Both get the fp32 tensor itself, with its values
rounded to the half format: one pass over memory, not two, and nothing to allocate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.native.half import round_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SMALLEST = 1 << 16
"""Elements below which PyTorch's two casts take less time than finding out who takes them."""


_CAST = torch.ops.aten._to_copy.default  # noqa: SLF001  # what `Tensor.to` calls


class Rounded(torch.Tensor):
    """A half gradient that has its fp32 copy, until that is asked for or the tensor is used.

    Attributes:
        wide: fp32 tensor of the same values; None when it has been given away.
    """

    wide: torch.Tensor | None

    @classmethod
    def of(cls, narrow: torch.Tensor, wide: torch.Tensor) -> Rounded:
        """Return `narrow`, with `wide` to give away when it is cast to fp32."""
        rounded = torch.Tensor._make_subclass(cls, narrow)  # noqa: SLF001  # no public name
        rounded.wide = wide
        return rounded

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub leaves out `func`
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Give the copy to the first cast to fp32; all else is computed on the half numbers."""
        del types
        kwargs = kwargs or {}
        if func is _CAST and kwargs.get("dtype") is torch.float32:
            (rounded,) = args
            wide, rounded.wide = rounded.wide, None
            if wide is not None and kwargs.get("device", wide.device) == wide.device:
                return wide
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, Rounded):
                arg.wide = None  # it may be written to
        with torch._C._DisableTorchDispatch():  # noqa: SLF001  # no public name
            return func(*args, **kwargs)


def weight_gradient(grad: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round the fp32 weight gradient of the convolution whose backward is running.

    Args:
        grad: fp32 tensor of any shape, which nobody else reads; it may be written to.
        dtype: The half format of the weight.

    Returns:
        `grad.to(dtype)`; where it goes to a parameter that wants fp32, its values in fp32.
    """
    taker = _taker() if grad.numel() >= SMALLEST else None
    if taker is None:
        return grad.to(dtype)
    narrow = round_in_place(grad, dtype)
    if narrow is None:
        return grad.to(dtype)
    return grad if taker == "AccumulateGrad" else Rounded.of(narrow, grad)


def _taker() -> str | None:
    """Return the kind of node that the gradient goes to, if that wants it in fp32.

    None under `create_graph`, where the rounding is differentiated, and outside an eager backward.
    """
    node = torch._C._current_autograd_node()  # noqa: SLF001  # no public name
    if torch.is_grad_enabled() or type(node).__name__ != "ConvolutionBackward0":
        return None
    taker, _ = node.next_functions[1]
    kind = type(taker).__name__
    if kind == "ToCopyBackward0":
        return kind
    parameter = getattr(taker, "variable", None)  # of AccumulateGrad
    return kind if parameter is not None and parameter.grad_dtype == torch.float32 else None
