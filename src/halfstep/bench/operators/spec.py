"""A call of an ATen operator as plain data, and the call made again from it on any device.

A tensor is a dictionary: its shape, its dtype ("half" for the half format that is measured, "full"
for fp32, else the dtype's name), and its memory order: the dimensions from the one with the largest
stride to the one with the smallest. Every other argument stands for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

Spec = dict[str, Any]

_HALVES = (torch.float16, torch.bfloat16)
_BATCH_NORM = "native_batch_norm"
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_FLAG = "tensor"
_FILTER = 7
"""Largest height of a filter; a tensor with more rows is a batch of images."""


def encoded(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Spec:
    """Return a call as plain data.

    Args:
        name: The operator and its overload, such as "mm.default".
        args: The positional arguments.
        kwargs: The named arguments.
    """
    named = {key: _encoded(argument) for key, argument in kwargs.items()}
    return {"op": name, "args": [_encoded(argument) for argument in args], "named": named}


def _encoded(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        kind = "half" if value.dtype in _HALVES else "full" if value.dtype == torch.float32 else ""
        strides = value.stride()
        order = sorted(range(value.dim()), key=lambda at: (-strides[at], at))
        return {
            _FLAG: list(value.shape),
            "dtype": kind or str(value.dtype).removeprefix("torch."),
            "order": order,
        }
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"torch": str(value).removeprefix("torch.")}
    return value if isinstance(value, (bool, int, float, str)) else None


def formats(spec: Spec) -> tuple[str, ...]:
    """Return the formats in which a call can be measured: half ones, or fp32 and TF32."""
    kinds = {tensor["dtype"] for tensor in _tensors(spec["args"])}
    if "half" in kinds:
        return ("fp16", "bf16")
    return ("fp32", "tf32") if "full" in kinds and _is_product(spec) else ("fp32",)


def has_images(spec: Spec) -> bool:
    """Tell whether a call has images, which the spec gives in NCHW, and which could be in NHWC."""
    batches = [tensor for tensor in _tensors(spec["args"]) if len(tensor[_FLAG]) == 4]
    alike = all(tensor["order"] == [0, 1, 2, 3] for tensor in batches)
    images = any(min(tensor[_FLAG][1:]) > 1 for tensor in batches)
    return images and alike and not spec["op"].startswith(_ATTENTION)


def _is_product(spec: Spec) -> bool:
    name: str = spec["op"]
    return name.startswith(("conv", "mm", "addmm", "bmm", "baddbmm", "_scaled_dot"))


def _tensors(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict) and _FLAG in value:
        return [value]
    return (
        [tensor for item in value for tensor in _tensors(item)] if isinstance(value, list) else []
    )


def arguments(
    spec: Spec, format_: str, *, channels_last: bool, device: torch.device, shrink: int = 1
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the named arguments of a call, with random values.

    Args:
        spec: The call.
        format_: The format of the tensors that are "half" in the spec.
        channels_last: Whether images are in NHWC; the order of the spec counts for other tensors.
        device: Where the tensors are.
        shrink: The number by which sizes are divided, except those within an image, for a test.
    """
    half = torch.bfloat16 if format_ == "bf16" else torch.float16

    def made(value: Any) -> Any:
        if isinstance(value, list):
            return [made(item) for item in value]
        if not isinstance(value, dict):
            return value
        if "torch" in value:
            return half if value["torch"] in ("float16", "bfloat16") else _dtype(value["torch"])
        dtype = {"half": half, "full": torch.float32}.get(value["dtype"]) or _dtype(value["dtype"])
        shape, order = list(value[_FLAG]), value["order"]
        whole = (
            1 if len(shape) == 4 and shape[2] > _FILTER else 0 if len(shape) == 4 else len(shape)
        )
        shape[:whole] = [size if size % shrink else size // shrink for size in shape[:whole]]
        if channels_last and len(shape) == 4:
            order = [0, 2, 3, 1]
        return _random([shape[at] for at in order], dtype, device).permute(
            [order.index(at) for at in range(len(order))]
        )

    named = {key: made(value) for key, value in spec["named"].items()}
    return tuple(made(argument) for argument in spec["args"]), named


def _dtype(name: str) -> torch.dtype:
    function = getattr(torch, name)
    assert isinstance(function, torch.dtype)
    return function


def _random(shape: list[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if dtype.is_floating_point:
        return torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
    return torch.zeros(shape, device=device, dtype=dtype)


def call(spec: Spec, args: tuple[Any, ...], named: dict[str, Any]) -> Callable[[], Any]:
    """Return the call as PyTorch makes it on the device of its arguments.

    Batch norms and attention are called through the functions that choose a kernel for the device;
    the gradients of attention are computed by autograd, because each kernel has its own backward.
    """
    name, overload = spec["op"].split(".")
    if name == _BATCH_NORM:
        images, weight, bias, mean, var, training, momentum, eps = args
        return lambda: functional.batch_norm(
            images, mean, var, weight, bias, training, momentum, eps
        )
    if name == _ATTENTION:
        causal = len(args) > 4 and bool(args[4])
        query, key, value = args[:3]
        return lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    if name in (f"{_ATTENTION}_backward", f"{_BATCH_NORM}_backward"):
        if name.startswith(_ATTENTION):
            grad, *inputs = args[:4]
            inputs = [tensor.detach().requires_grad_() for tensor in inputs]
            out = functional.scaled_dot_product_attention(*inputs)
        else:
            grad, value, weight = args[:3]
            inputs = [value.detach().requires_grad_(), weight.detach().requires_grad_()]
            out = functional.batch_norm(inputs[0], None, None, inputs[1], training=True)
        return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)
    function = getattr(getattr(torch.ops.aten, name), overload)
    return lambda: function(*args, **named)
