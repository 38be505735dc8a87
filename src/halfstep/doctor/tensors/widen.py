"""Runs a step in fp32: every half-precision tensor is cast to fp32 below autograd.

Below autograd, autocast, `.half()`, a module's own casts and half parameters are all operators on
half tensors. So one dispatch mode shows for any program whether a failure also happens in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep.doctor.internals import is_cast
from halfstep.doctor.tensors.nesting import exchange
from halfstep.formats.dtypes import HALVES

_CUDNN_RNN = torch.ops.aten._cudnn_rnn.default  # noqa: SLF001  # the operator's name
_PACKED = 3  # index of its argument weight_buf


def widened(value: Any) -> Any:
    """Return a half-precision tensor or dtype as fp32, and any other value unchanged."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALVES else value
    return torch.float32 if value in HALVES else value


class Widen(TorchDispatchMode):
    """Runs half-precision operators in fp32."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own, without annotations

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if is_cast(func) and kwargs.get("dtype") in HALVES:
            # The cast has no effect now, but it must still return a new tensor.
            kwargs = {**kwargs, "dtype": torch.float32}
        if func is _CUDNN_RNN:
            # The weights are views of one tensor, and lose this when each is widened. Without the
            # tensor, cuDNN packs them anew.
            args = (*args[:_PACKED], None, *args[_PACKED + 1 :])
        return func(*exchange(args, widened), **exchange(kwargs, widened))
