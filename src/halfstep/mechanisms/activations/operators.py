"""Decides for each operator whether its saved tensors are compressed, and to how many bits.

With stochastic rounding, a saved tensor is right on average, and so is a gradient that is linear in
this tensor, as the gradients of convolutions, products and norm layers are. Other gradients (of an
exponential, a quotient) would be wrong on average. Their operators save exact tensors, as does
every operator that this file does not name.
"""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from halfstep.mechanisms.activations.attention import Attention, in_separate_storage
from halfstep.mechanisms.activations.batch_norm import BatchNorm
from halfstep.mechanisms.activations.functions import Dropout, MaxPool, Pointwise, Rectifier
from halfstep.mechanisms.activations.norms import GroupNorm, LayerNorm, RMSNorm
from halfstep.mechanisms.activations.roles import role_of
from halfstep.mechanisms.activations.store import compressible

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.mechanisms.activations.sensitivity import Meter
    from halfstep.mechanisms.activations.store import Store

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

PRODUCTS_OF_ROUNDED: frozenset[Function] = frozenset(
    {
        functional.softmax, torch.softmax, torch.Tensor.softmax,
        functional.multi_head_attention_forward,
    }
)  # fmt: skip
"""Operators whose gradients are not linear in their saved tensors. These take much memory, so they
are compressed as well, but to no fewer than 8 bits."""

_BITS_OF_PRODUCTS = 8

SMOOTH: frozenset[Function] = frozenset(
    {
        functional.gelu, functional.silu, functional.mish, functional.elu, functional.selu,
        functional.celu, functional.softplus, functional.sigmoid, functional.tanh,
        functional.hardswish, functional.hardsigmoid, functional.leaky_relu,
        functional.logsigmoid, functional.softsign,
        torch.sigmoid, torch.tanh, torch.Tensor.sigmoid, torch.Tensor.tanh,
        torch.selu, torch.celu,
    }
)  # fmt: skip
"""Elementwise functions, for which the derivative is saved instead."""

SMOOTH_IN_PLACE: dict[Function, Function] = {
    functional.elu_: functional.elu, functional.selu_: torch.selu, functional.celu_: torch.celu,
    functional.leaky_relu_: functional.leaky_relu,
    torch.selu_: torch.selu, torch.celu_: torch.celu,
    torch.sigmoid_: torch.sigmoid, torch.tanh_: torch.tanh,
    torch.Tensor.sigmoid_: torch.sigmoid, torch.Tensor.tanh_: torch.tanh,
}  # fmt: skip
"""In-place functions without an `inplace` argument, and for each its out-of-place version."""

RECTIFIERS: frozenset[Function] = frozenset(
    {
        functional.relu, functional.relu_, torch.relu, torch.relu_, torch.Tensor.relu,
        torch.Tensor.relu_,
    }
)  # fmt: skip

_IN_PLACE = {
    functional.relu_, torch.relu_, torch.Tensor.relu_, functional.hardtanh_, *SMOOTH_IN_PLACE,
}  # fmt: skip


class Operators(TorchFunctionMode):
    """Intercepts operators, and tells a store to how many bits it compresses their saved tensors.

    Args:
        store: The store of the saved tensors.
        bits: Returns the bits for the module that is running; None for no compression.

    Attributes:
        meter: Records the saved tensors and the result of each operator; None if nothing is
            measured.
    """

    def __init__(self, store: Store, bits: Callable[[], int | None]) -> None:
        super().__init__()
        self._store = store
        self._bits = bits
        self.meter: Meter | None = None
        self._replaced: dict[Function, Function] = dict.fromkeys(LINEAR, self._linear)
        self._replaced |= dict.fromkeys(PRODUCTS_OF_ROUNDED, self._product)
        self._replaced |= dict.fromkeys(RECTIFIERS, self._rectifier)
        self._replaced |= dict.fromkeys((*SMOOTH, *SMOOTH_IN_PLACE), self._smooth)
        self._replaced |= dict.fromkeys((functional.hardtanh, functional.hardtanh_), self._clamp)
        self._replaced |= dict.fromkeys((functional.layer_norm, torch.layer_norm), self._layer_norm)
        self._replaced |= dict.fromkeys((functional.rms_norm, torch.rms_norm), self._rms_norm)
        self._replaced |= dict.fromkeys((functional.group_norm, torch.group_norm), self._group_norm)
        self._replaced |= {
            functional.relu6: self._relu6,
            functional.dropout: self._dropout,
            functional.instance_norm: self._instance_norm,
            functional.batch_norm: self._batch_norm,
            functional.max_pool2d: self._max_pool2d,
            functional.scaled_dot_product_attention: self._attention,
        }

    def __torch_function__(
        self,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        kwargs = kwargs or {}
        run = self._replaced.get(func)
        if run is None:
            return func(*args, **kwargs)
        if self.meter is None:
            return run(func, args, kwargs)
        with self.meter.operator() as operands:
            result = run(func, args, kwargs)
        self.meter.used(operands, result, partial(role_of, func, args, result))
        return result

    def _linear(self, func: Function, args: Any, kwargs: Any) -> Any:
        with self._store.during(self._bits()):
            return func(*args, **kwargs)

    def _product(self, func: Function, args: Any, kwargs: Any) -> Any:
        bits = self._bits()
        smallest = _above_statistics(args, kwargs)
        with self._store.during(bits and max(bits, _BITS_OF_PRODUCTS), smallest):
            return func(*args, **kwargs)

    def _rectifier(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, inplace = _given(args, kwargs, input=None, inplace=False)
        return self._cut(func, args, kwargs, values, inplace or func in _IN_PLACE, 0.0, inf)

    def _relu6(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, inplace = _given(args, kwargs, input=None, inplace=False)
        return self._cut(func, args, kwargs, values, inplace, 0.0, 6.0)

    def _clamp(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, lowest, highest, inplace = _given(
            args, kwargs, input=None, min_val=-1.0, max_val=1.0, inplace=False
        )
        return self._cut(func, args, kwargs, values, inplace or func in _IN_PLACE, lowest, highest)

    def _cut(
        self, func: Function, args: Any, kwargs: Any, values: Any, inplace: bool, *bounds: float
    ) -> Any:
        if not self._applies(values, inplace=inplace) or bounds[0] >= bounds[1]:
            return func(*args, **kwargs)
        return Rectifier.apply(values, inplace, *bounds)

    def _smooth(self, func: Function, args: Any, kwargs: Any) -> Any:
        values = args[0] if args else kwargs.get("input")
        flags = [kwargs.get("inplace", False), *(each for each in args if isinstance(each, bool))]
        inplace = any(flags) or func in _IN_PLACE
        if not self._applies(values, inplace=inplace):
            return func(*args, **kwargs)
        smooth = SMOOTH_IN_PLACE.get(func, func)
        rest = [False if isinstance(each, bool) else each for each in args[1:]]
        named = {name: given for name, given in kwargs.items() if name not in {"input", "inplace"}}
        with self._store.during(self._bits()):
            return Pointwise.apply(values, lambda given: smooth(given, *rest, **named), inplace)

    def _dropout(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, share, training, inplace = _given(
            args, kwargs, input=None, p=0.5, training=True, inplace=False
        )
        if not training or not 0 < share < 1 or not self._applies(values, inplace=inplace):
            return func(*args, **kwargs)
        return Dropout.apply(values, share, inplace)

    def _attention(self, func: Function, args: Any, kwargs: Any) -> Any:
        given = _given(
            args, kwargs, query=None, key=None, value=None, attn_mask=None, dropout_p=0.0,
            is_causal=False, scale=None, enable_gqa=False,
        )  # fmt: skip
        mask, dropout, *options = given[3:]
        if dropout > 0 or not self._applies(given[2], dense=False):
            return func(*args, **kwargs)
        query, key, value = in_separate_storage(*given[:3])
        with self._store.during(self._bits(), whole=(query, key)):
            return Attention.apply(
                query, key, value, mask, dict(zip(_OF_ATTENTION, options, strict=True))
            )

    def _rms_norm(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, shape, weight, eps = _given(
            args, kwargs, input=None, normalized_shape=None, weight=None, eps=None
        )
        if not self._applies(values):
            return func(*args, **kwargs)
        with self._store.during(self._bits(), _above_statistics(args, kwargs)):
            return RMSNorm.apply(values, list(shape), weight, eps)

    def _group_norm(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, groups, weight, bias, eps = _given(
            args, kwargs, input=None, num_groups=None, weight=None, bias=None, eps=1e-5
        )
        if not self._applies(values):
            return func(*args, **kwargs)
        call = partial(functional.group_norm, num_groups=groups, eps=eps)
        with self._store.during(self._bits(), _above_statistics(args, kwargs)):
            return GroupNorm.apply(values, weight, bias, call, groups, eps)

    def _instance_norm(self, func: Function, args: Any, kwargs: Any) -> Any:
        values, mean, var, weight, bias, use_input, momentum, eps = _given(
            args, kwargs, input=None, running_mean=None, running_var=None, weight=None, bias=None,
            use_input_stats=True, momentum=0.1, eps=1e-5,
        )  # fmt: skip
        if not use_input or not self._applies(values) or values.dim() < 3:
            return func(*args, **kwargs)
        call = partial(
            functional.instance_norm, running_mean=mean, running_var=var, momentum=momentum, eps=eps
        )
        with self._store.during(self._bits(), _above_statistics(args, kwargs)):
            return GroupNorm.apply(values, weight, bias, call, values.size(1), eps)

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
            )  # if the sizes do not fit, torch's operator raises the error
            if not training or not fits or not self._applies(values):
                return func(*args, **kwargs)
            return BatchNorm.apply(values, mean, var, weight, bias, momentum, eps, self._store)

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

    def _applies(self, values: Any, *, inplace: bool = False, dense: bool = True) -> bool:
        """Tell whether a function of halfstep can replace an operator with the input `values`.

        It can if autograd would save `values`, and the store would receive and compress it. An
        in-place operator on a view is not replaced, because autograd refuses custom functions that
        change views in place.
        """
        return (
            isinstance(values, torch.Tensor)
            and torch.is_grad_enabled()
            and values.requires_grad
            and compressible(values, dense=dense)
            and self._bits() is not None
            and self._store.is_asked()
            and not (inplace and values._is_view())  # noqa: SLF001  (no public name)
        )


_OF_ATTENTION = ("is_causal", "scale", "enable_gqa")


def _above_statistics(args: Any, kwargs: Any) -> int:
    """Return the size in elements below which a saved tensor is a statistic of the input."""
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
