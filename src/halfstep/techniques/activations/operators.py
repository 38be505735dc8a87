"""Which operators' saved tensors are kept in a few bits, and in how many.

Rounded stochastically, a saved tensor is right on average, and so is a gradient that is linear in
it: those of convolutions, products and norm layers. What is not (an exponential, a quotient) would
be wrong on average; it keeps its tensors whole, as does every operator that is not named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from halfstep.techniques.activations.functions import Dropout, MaxPool, Pointwise, Rectifier
from halfstep.techniques.activations.norms import BatchNorm, LayerNorm
from halfstep.techniques.activations.store import compressible

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.techniques.activations.store import Store

    Function = Callable[..., Any]

LINEAR: frozenset[Function] = frozenset(
    {
        functional.linear, functional.bilinear,
        functional.conv1d, functional.conv2d, functional.conv3d,
        functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d,
        functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d,
        functional.adaptive_avg_pool1d, functional.adaptive_avg_pool2d,
        functional.adaptive_avg_pool3d,
        torch.conv1d, torch.conv2d, torch.conv3d,
        torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, torch.mul,
        torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.bmm, torch.Tensor.mul,
        torch.Tensor.__matmul__, torch.Tensor.__rmatmul__,
        torch.Tensor.__mul__, torch.Tensor.__rmul__,
    }
)  # fmt: skip
"""Operators whose gradients are linear in each tensor that they save."""

ATTENTION: frozenset[Function] = frozenset(
    {
        functional.scaled_dot_product_attention,
        functional.softmax, torch.softmax, torch.Tensor.softmax,
        functional.multi_head_attention_forward,
    }
)  # fmt: skip
"""Operators whose gradients are not, but of which much memory is: never in fewer bits than 8."""

_ATTENTION_BITS = 8

SMOOTH: frozenset[Function] = frozenset(
    {
        functional.gelu, functional.silu, functional.mish, functional.elu, functional.selu,
        functional.celu, functional.softplus, functional.sigmoid, functional.tanh,
        functional.hardswish, functional.hardsigmoid, functional.hardtanh, functional.relu6,
        functional.leaky_relu, functional.logsigmoid, functional.softsign,
        torch.sigmoid, torch.tanh, torch.Tensor.sigmoid, torch.Tensor.tanh,
        torch.selu, torch.celu,
    }
)  # fmt: skip
"""Functions of single elements, whose derivative is kept instead."""

RECTIFIERS: frozenset[Function] = frozenset(
    {
        functional.relu, functional.relu_, torch.relu, torch.relu_, torch.Tensor.relu,
        torch.Tensor.relu_,
    }
)  # fmt: skip

_IN_PLACE = {functional.relu_, torch.relu_, torch.Tensor.relu_}


class Operators(TorchFunctionMode):
    """Tells a store, as an operator runs, in how many bits its saved tensors are kept.

    Args:
        store: Where they are kept.
        bits: Gives the bits of the module that runs; None where it keeps its tensors whole.
    """

    def __init__(self, store: Store, bits: Callable[[], int | None]) -> None:
        super().__init__()
        self._store = store
        self._bits = bits
        self._replaced: dict[Function, Function] = dict.fromkeys(RECTIFIERS, self._rectifier)
        self._replaced |= dict.fromkeys(SMOOTH, self._smooth)
        self._replaced[functional.dropout] = self._dropout
        self._replaced |= dict.fromkeys((functional.layer_norm, torch.layer_norm), self._layer_norm)
        self._replaced[functional.batch_norm] = self._batch_norm
        self._replaced[functional.max_pool2d] = self._max_pool2d

    def __torch_function__(
        self,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        replacement = self._replaced.get(func)
        if replacement is not None:
            return replacement(func, args, kwargs)
        if func in LINEAR:
            with self._store.during(self._bits()):
                return func(*args, **kwargs)
        if func in ATTENTION:
            bits = self._bits()
            smallest = _above_statistics(args, kwargs)
            with self._store.during(bits and max(bits, _ATTENTION_BITS), smallest):
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _rectifier(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, *rest = args or (kwargs.get("input"),)
        inplace = func in _IN_PLACE or bool(rest[0] if rest else kwargs.get("inplace", False))
        if not self._applies(values) or (inplace and values._is_view()):  # noqa: SLF001
            return func(*args, **kwargs)
        return Rectifier.apply(values, inplace)

    def _smooth(self, func: Function, args: Any, kwargs: Any) -> Any:
        bits = self._bits()
        values = args[0] if args else kwargs.get("input")
        inplace = kwargs.get("inplace") or any(isinstance(each, bool) for each in args[1:])
        if bits is None or inplace or not self._applies(values):
            return func(*args, **kwargs)
        rest = {name: given for name, given in kwargs.items() if name != "input"}
        with self._store.during(bits):
            return Pointwise.apply(values, lambda given: func(given, *args[1:], **rest))

    def _dropout(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, share, training, inplace = _given(
            args, kwargs, input=None, p=0.5, training=True, inplace=False
        )
        if not training or inplace or not 0 < share < 1 or not self._applies(values):
            return func(*args, **kwargs)
        return Dropout.apply(values, share)

    def _layer_norm(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, shape, weight, bias, eps = _given(
            args, kwargs, input=None, normalized_shape=None, weight=None, bias=None, eps=1e-5
        )
        with self._store.during(self._bits(), _above_statistics(args, kwargs)):
            if not self._applies(values):
                return func(*args, **kwargs)
            return LayerNorm.apply(values, list(shape), weight, bias, eps)

    def _batch_norm(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, mean, var, weight, bias, training, momentum, eps = _given(
            args, kwargs, input=None, running_mean=None, running_var=None, weight=None, bias=None,
            training=False, momentum=0.1, eps=1e-5,
        )  # fmt: skip
        with self._store.during(self._bits()):
            channels = values.size(1) if values.dim() > 1 else 0
            sizes = {each.numel() for each in (mean, var, weight, bias) if each is not None}
            fits = (
                sizes <= {channels} and values.numel() > channels
            )  # else torch says what is wrong
            if not training or not fits or not self._applies(values):
                return func(*args, **kwargs)
            return BatchNorm.apply(values, mean, var, weight, bias, momentum, eps)

    def _max_pool2d(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, size, stride, padding, dilation, ceil_mode, return_indices = _given(
            args, kwargs, input=None, kernel_size=None, stride=None, padding=0, dilation=1,
            ceil_mode=False, return_indices=False,
        )  # fmt: skip
        if return_indices or not self._applies(values) or values.dim() != 4:
            return func(*args, **kwargs)
        window = _pair(size)
        if window[1] > values.size(3) or window[0] * window[1] > 256:
            return func(*args, **kwargs)
        return MaxPool.apply(
            values, window, _pair(stride or size), _pair(padding), _pair(dilation), ceil_mode
        )

    def _applies(self, values: Any) -> bool:
        """Tell whether autograd would save this tensor, and give it to our store."""
        return (
            isinstance(values, torch.Tensor)
            and torch.is_grad_enabled()
            and values.requires_grad
            and compressible(values)
            and self._bits() is not None
            and self._store.is_asked()
        )


def _above_statistics(args: Any, kwargs: Any) -> int:
    """Return the elements below which what an operator saves are statistics of its input."""
    values = args[0] if args else kwargs.get("input", kwargs.get("query"))
    return values.numel() // 8 + 1 if isinstance(values, torch.Tensor) else 0


def _given(args: Any, kwargs: Any, **defaults: Any) -> list[Any]:
    """Return the arguments of a call in the order of `defaults`."""
    named = dict(zip(defaults, args, strict=False)) | kwargs
    return [named.get(name, default) for name, default in defaults.items()]


def _pair(given: Any) -> list[int]:
    if isinstance(given, int):
        return [given, given]
    both = list(given)
    return both if len(both) == 2 else both * 2
