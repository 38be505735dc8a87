"""CUDA's autocast policy on a CPU, so that a rehearsed forward has the same dtypes as on a GPU.

PyTorch's lists of operators differ between the two: under autocast, softmax, norms, exp, pow and
sums are fp32 on CUDA and half on a CPU. The dispatcher tells which operators CUDA casts. The lists
in this file only tell how (`ATen/autocast_mode.h`): to the lower precision, to the widest input, or
not at all because the operator is refused; all other operators are cast to fp32.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from halfstep.kernels.registration import Counted, Overrides

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halfstep.kernels.registration import Kernel

LOWER = frozenset(
    [
        "_convolution",
        "convolution",
        "addmv",
        "addr",
        "einsum",
        "mv",
        "chain_matmul",
        "linalg_multi_dot",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
    ]
)
"""Operators that CUDA casts to the half format, and that the CPU's lists do not contain."""

WIDEST = frozenset(
    [
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "vdot",
        "grid_sampler",
        "index_put",
        "tensordot",
        "scatter_add",
    ]
)
"""Operators whose inputs are all cast to the widest format among these inputs."""

REFUSED = "binary_cross_entropy"
"""The operator that CUDA refuses under autocast, because the logarithm overflows in half."""

_OTHER_POLICY_ON_CPU = frozenset({"grid_sampler", REFUSED})
_OF_CUDNN = frozenset(
    [
        "_cudnn_rnn",
        "cudnn_convolution",
        "cudnn_convolution_transpose",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
        "_scaled_dot_product_flash_attention",
    ]
)
_LSTM_LAYER = "mkldnn_rnn_layer"
"""The CPU's counterpart of CUDA's `_cudnn_rnn`, which autocast casts to the half format too."""
# CUDA pools in the dtype of the input, but the CPU has no half kernel for this operator.
_WITHOUT_HALF_KERNEL = frozenset({"avg_pool3d"})


@contextmanager
def cuda_autocast_policy() -> Iterator[None]:
    """Make `torch.autocast("cpu")` cast as `torch.autocast("cuda")` does, in every thread."""
    with _overrides.held(), _unfused_encoders.held():
        yield


class _UnfusedEncoders(Counted):
    """Disables the fused path of attention and encoder layers in evaluation mode.

    Autocast on CUDA disables this path. Autocast on a CPU does not, and the path computes in fp32.
    """

    def _put_in_place(self) -> None:
        self._before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)

    def _give_back(self) -> None:
        torch.backends.mha.set_fastpath_enabled(self._before)


def _kernels() -> dict[str, Kernel | None]:
    on_cuda, on_cpu = _listed("AutocastCUDA"), _listed("AutocastCPU")
    changed = (on_cuda - on_cpu - _OF_CUDNN) | (on_cuda & _OTHER_POLICY_ON_CPU)
    falls_through: dict[str, Kernel | None] = dict.fromkeys(on_cpu - on_cuda - {_LSTM_LAYER})
    changed |= on_cpu & (_WITHOUT_HALF_KERNEL | {_LSTM_LAYER})
    return falls_through | {name: _policy(name) for name in changed}


def _listed(key: str) -> set[str]:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key  # noqa: SLF001  # no public
    return {n.removeprefix("aten::") for n in registered(key) if n.startswith("aten::")}


def _policy(name: str) -> Kernel:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if name == REFUSED:
        return _refuse
    if name == _LSTM_LAYER:
        return _lstm_layer
    if name in _WITHOUT_HALF_KERNEL:
        return _keeping_format(operator)
    if name in LOWER:
        return _casting(operator, lambda _: torch.get_autocast_dtype("cpu"))
    if name in WIDEST:
        return _casting(operator, _widest)
    return _casting(operator, lambda _: torch.float32)


def _casting(
    operator: Callable[..., Any], choose: Callable[[list[torch.Tensor]], torch.dtype]
) -> Kernel:
    def kernel(_: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = list(_castable([*args, *kwargs.values()]))
        dtype = choose(tensors)
        with torch._C._DisableAutocast():  # noqa: SLF001  # as torch's own kernels do
            return operator(
                *(_cast(arg, dtype) for arg in args),
                **{name: _cast(value, dtype) for name, value in kwargs.items()},
            )

    return kernel


def _keeping_format(operator: Callable[..., Any]) -> Kernel:
    def kernel(_: Callable[..., Any], value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableAutocast():  # noqa: SLF001
            return operator(_cast(value, torch.float32), *args, **kwargs).to(value.dtype)

    return kernel


def _lstm_layer(_: Callable[..., Any], *args: Any) -> Any:
    """Compute one direction of a layer of `nn.LSTM` in the half format.

    This replaces oneDNN's kernel, because oneDNN cannot train in fp16, and has no kernels at all
    for a half format without units in the processor.
    """
    dtype = torch.get_autocast_dtype("cpu")
    sequence, *weights, hidden, cell = _cast(args[:7], dtype)
    reverse, has_biases, train = args[7], args[12], args[15]
    inputs = sequence.flip(0) if reverse else sequence
    with torch._C._DisableAutocast():  # noqa: SLF001
        outputs, hidden, cell = torch.ops.aten.lstm.input(
            inputs,
            [hidden[None], cell[None]],
            weights if has_biases else weights[:2],
            has_biases,
            1,  # layer
            0.0,  # dropout, which is between layers
            train,
            False,  # noqa: FBT003  # bidirectional (the operator's signature)
            False,  # noqa: FBT003  # batch first
        )
    workspace = outputs.new_empty(0)
    return outputs.flip(0) if reverse else outputs, hidden[0], cell[0], workspace


def _refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError(
        "binary_cross_entropy is unsafe under autocast, and CUDA refuses it; use "
        "binary_cross_entropy_with_logits on the values before the sigmoid"
    )


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    wide = any(tensor.dtype == torch.float32 for tensor in tensors)
    return torch.float32 if wide else torch.get_autocast_dtype("cpu")


def _is_castable(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.device.type == "cpu"
        and value.dtype != torch.float64
    )


def _castable(values: list[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _castable(list(value))
        elif _is_castable(value):
            yield value


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(each, dtype) for each in value]
    return value.to(dtype) if _is_castable(value) else value


_overrides = Overrides("AutocastCPU", _kernels)
_unfused_encoders = _UnfusedEncoders()
