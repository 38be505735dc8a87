"""Gradients of large half weights, rounded in place where autograd widens them again.

A convolution's backward computes them in fp32 and has to return them in the half format of the
weight. Under autocast the next node casts them to fp32, as the parameter is fp32; a half parameter
may have asked for fp32 gradients (`grad_dtype`). Both get the fp32 tensor itself, with its values
rounded to the half format: one pass over memory, not two, and nothing to allocate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from halfstep.kernels.native.half import round_to_half

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SMALLEST = 1 << 16
"""Elements below which PyTorch's two casts take less time than finding out who takes them."""


_CAST = torch.ops.aten._to_copy.default  # noqa: SLF001  # what `Tensor.to` calls


class Rounded(torch.Tensor):
    """A half gradient that is not written yet: there is its fp32 copy.

    The first cast to fp32 gets the copy. Any other use writes the half numbers first.

    Attributes:
        wide: fp32 tensor of the values; None when the half numbers are written.
        given: Whether a cast has got the copy. Nobody writes to it as long as this tensor lives:
            autograd takes over the memory of a gradient only from nobody else.
    """

    wide: torch.Tensor | None
    given: bool

    @classmethod
    def of(cls, wide: torch.Tensor, dtype: torch.dtype) -> Rounded:
        """Return the half numbers of `wide`, whose values are rounded already."""
        narrow = torch.empty_like(wide, dtype=dtype)
        rounded = torch.Tensor._make_subclass(cls, narrow)  # noqa: SLF001  # no public name
        rounded.wide, rounded.given = wide, False
        return rounded

    def write(self) -> None:
        """Write the half numbers, if they are not written."""
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
        """Give the copy to the first cast to fp32; compute all else on the half numbers."""
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
        grad: fp32 tensor of any shape, which nobody else reads; it may be written to.
        dtype: The half format of the weight.

    Returns:
        `grad.to(dtype)`; where it goes to a parameter that wants fp32, its values in fp32.
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
    """Return the kind of node that the gradient goes to, if that wants it in fp32.

    None under `create_graph`, where the rounding is differentiated, outside an eager backward, and
    where `autograd.grad` may return the half gradient as well.
    """
    node = torch._C._current_autograd_node()  # noqa: SLF001  # no public name
    if torch.is_grad_enabled() or type(node).__name__ != "ConvolutionBackward0":
        return None
    taker, _ = node.next_functions[1]
    kind = type(taker).__name__
    if kind == "ToCopyBackward0":
        return kind if _passes_on(taker) else None
    parameter = getattr(taker, "variable", None)  # of AccumulateGrad
    return kind if parameter is not None and parameter.grad_dtype == torch.float32 else None


def _passes_on(cast: Any) -> bool:
    """Tell whether the backward of a cast gets the gradient, and no `autograd.grad` does."""
    ((parameter, _),) = cast.next_functions
    try:
        return torch._C._will_engine_execute_node(parameter)  # noqa: SLF001  # no public name
    except RuntimeError:  # what goes to a parameter is returned
        return False
