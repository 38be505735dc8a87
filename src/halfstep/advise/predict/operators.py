"""Describes the work of an operator: its floating-point operations, bytes, shape and kernels.

Operators are recognised by their name in ATen. An operator that is neither listed here nor tagged
pointwise by PyTorch is "unknown": its bytes count as read and written once, and printed predictions
name the operator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import suggest_memory_format

from halfstep import formats
from halfstep.advise.predict.kinds import KIND_OF, NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.mechanisms import CountedProduct

aten = torch.ops.aten

PRODUCTS = ("conv", "depthwise", "grouped", "gemm", "attention", "recurrent")
"""Kinds whose time may be limited by arithmetic as well as by memory."""

KINDS = (
    *PRODUCTS,
    "norm",
    "row norm",
    "softmax",
    "pointwise",
    "reduction",
    "copy",
    "pool",
    "index",
    "unknown",
)
"""Every kind of operator."""

SIZES = {"fp64": 8, **{name: format_.bytes for name, format_ in formats.FORMATS.items()}}
"""Bytes per element of each format that operators compute in."""

FORMAT_OF = {
    torch.float64: "fp64",
    **{formats.torch_dtype(name): name for name in formats.FORMATS if name != "tf32"},
}


@dataclass(frozen=True, slots=True)
class Op:
    """The work of one kernel, or of a few kernels that belong together.

    Attributes:
        name: The name in ATen, without the overload.
        kind: One of `KINDS`.
        role: In a convolution's backward, "input" or "weight", the tensor whose gradient is
            computed; else "".
        format: The format of the largest floating-point tensor, taken as that of the computation.
        flops: Multiplications and additions of a product; 0 for other kinds, which memory limits.
        read: Bytes read.
        written: Bytes written.
        elements: Elements of the largest tensor.
        m: Rows of the result of the matrix product; 0 if the kind is not a product.
        n: Columns of the result.
        k: Length of the dimension that is summed over.
        groups: Number of such matrix products; of a batch norm, the number of channels.
        window: Positions of a convolution's filter: 9 for 3x3.
        channels_last: Whether images are in NHWC.
        launches: Number of kernels.
        gain: How many times as fast the product is in FP8, with the casts around it; 1 elsewhere.
    """

    name: str
    kind: str
    format: str = "fp32"
    role: str = ""
    flops: int = 0
    read: int = 0
    written: int = 0
    elements: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    groups: int = 1
    window: int = 1
    channels_last: bool = False
    launches: int = 1
    gain: float = 1.0


_FOREACH_LAUNCH = 2**16 * 320
"""Elements of one launch of a foreach kernel: 320 blocks of 65,536 (MultiTensorApply.cuh)."""


def described(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Iterator[Op]:
    """Yield the work of a call of an ATen operator; nothing for views.

    Args:
        func: The overload that was called.
        args: The positional arguments.
        kwargs: The keyword arguments.
        out: The results.
    """
    name = func.overloadpacket.__name__
    if name in NOTHING or _is_view(func):
        return
    if func.overloadpacket in (aten.convolution, aten._convolution):  # noqa: SLF001
        yield from _convolution(args, out)
    elif func.overloadpacket is aten.convolution_backward:
        yield from _convolution_backward(args, out)
    elif name in _MATRIX_FACTORS:
        yield _matrix_product(name, args, out)
    elif "scaled_dot_product" in name or name.startswith(("_flash_att", "_efficient_att")):
        yield _attention(name, args, kwargs, out)
    else:
        op = _by_memory(func, _on_cuda(name, args), args, kwargs, out)
        yield replace(op, groups=args[0].shape[1]) if name.startswith(_BATCH_NORM) else op


_BATCH_NORM = "native_batch_norm"


def _on_cuda(name: str, args: tuple[Any, ...]) -> str:
    """Return the name of the operator that CUDA runs: cuDNN's batch norm where ATen chooses it.

    ATen's `native/Normalization.cpp` does so in training, with fp32 parameters, but not for bf16.
    """
    if not name.startswith(_BATCH_NORM):
        return name
    value, weight = args[1:3] if name.endswith("backward") else args[:2]
    if weight is None or weight.dtype != torch.float32 or value.dtype == torch.bfloat16:
        return name
    return name.replace("native", "cudnn")


def _is_view(func: Any) -> bool:
    returns = func._schema.returns  # noqa: SLF001
    return bool(returns) and all(
        each.alias_info is not None and not each.alias_info.is_write for each in returns
    )


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors among arguments or results, including nested ones."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)


def size_of(tensor: torch.Tensor) -> int:
    """Return the bytes that reading a tensor transfers; an expanded dimension is read once."""
    elements = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= length if stride or length == 0 else 1
    return elements * tensor.element_size()


def format_of(*operands: torch.Tensor) -> str:
    """Return the format of the largest floating-point tensor; fp32 where there is none."""
    floating = [each for each in operands if each.dtype in FORMAT_OF]
    if not floating:
        return "fp32"
    return FORMAT_OF[max(floating, key=lambda each: each.numel()).dtype]


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor of images is in NHWC and not also in NCHW."""
    if tensor.dim() != 4:
        return False
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _by_memory(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> Op:
    plain = name.removesuffix("_") if name.removesuffix("_") in KIND_OF else name
    kind = KIND_OF.get(plain)
    if kind is None:
        tagged = torch.Tag.pointwise in func.tags or name.startswith("_foreach_")
        kind = "pointwise" if tagged else "unknown"
    inputs, results = list(tensors([args, kwargs])), list(tensors(out))
    written = {id(each): each for each in [*results, *_changed(func, args, kwargs)]}
    reads = _overwrites(name, inputs)
    everything = [*inputs, *written.values()]
    elements = max((each.numel() for each in everything), default=0)
    launches = 1
    if name.startswith(("_foreach", "_fused", "_amp_foreach")):
        total = sum(each.numel() for each in written.values())
        elements, launches = total, 1 + total // _FOREACH_LAUNCH
    gathers = kind == "index"
    bytes_read = sum(map(size_of, reads))
    bytes_written = sum(map(size_of, written.values()))
    if gathers and "put" not in name and "add" not in name:
        bytes_read = min(bytes_read, 2 * bytes_written)
    return Op(
        name=name,
        kind=kind,
        format=format_of(*everything),
        read=bytes_read,
        written=bytes_written,
        elements=elements,
        channels_last=any(map(is_channels_last, inputs)),
        launches=launches,
    )


def _overwrites(name: str, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the inputs that an operator reads; copies and fills only write their first input."""
    if name in ("copy_", "fill_", "zero_", "bernoulli_", "uniform_", "normal_", "full_like"):
        return inputs[1:]
    if name in ("zeros_like", "ones_like", "new_zeros", "new_full", "new_ones", "rand_like"):
        return []
    if name == "_foreach_copy_":
        return inputs[len(inputs) // 2 :]
    return inputs


def _changed(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            yield from tensors(value)


# Positions of the two factors among the arguments.
_MATRIX_FACTORS = {
    "mm": (0, 1),
    "addmm": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "_scaled_mm": (0, 1),
    "addmv": (1, 2),
    "mv": (0, 1),
    "dot": (0, 1),
    "_addmm_activation": (1, 2),
}


def _matrix_product(name: str, args: Any, out: Any) -> Op:
    first, second = (args[position] for position in _MATRIX_FACTORS[name])
    k = first.shape[-1]
    m = first.shape[-2] if first.dim() > 1 else 1
    n = second.shape[-1] if second.dim() > 1 else 1
    groups = math.prod(first.shape[:-2])
    return Op(
        name=name,
        kind="gemm",
        format=format_of(first),
        flops=2 * m * n * k * groups,
        read=sum(map(size_of, tensors(list(args)))),
        written=size_of(out),
        elements=max(first.numel(), second.numel(), out.numel()),
        m=m,
        n=n,
        k=k,
        groups=groups,
    )


def native_product(given: CountedProduct) -> Op:
    """Return the work of a native product in a narrow format: that in bf16, with its gain."""
    m, n, k, size, gain = given
    return Op(
        name="_scaled_mm",
        kind="gemm",
        format="bf16",
        flops=2 * m * n * k,
        read=2 * (m * k + n * k),
        written=m * n * size,
        elements=max(m * k, n * k, m * n),
        m=m,
        n=n,
        k=k,
        gain=gain,
    )


def _attention(name: str, args: Any, kwargs: Any, out: Any) -> Op:
    # The first argument of a backward is the gradient of the output. A backward recomputes the
    # scores, so it takes five products; a forward takes two.
    products = 5 if "backward" in name else 2
    query, key, value = args[products == 5 :][:3]
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    inputs, results = list(tensors([args, kwargs])), list(tensors(out))
    return Op(
        name=name,
        kind="attention",
        format=format_of(query),
        flops=products * pairs * (query.shape[-1] + value.shape[-1]),
        read=sum(map(size_of, inputs)),
        written=sum(map(size_of, results)),
        elements=query.numel(),
        m=query.shape[-2],
        n=query.shape[-1],
        k=query.shape[-1],
        groups=math.prod(query.shape[:-2]),
        launches=3 if "backward" in name else 1,
    )


def _convolution(args: Any, out: torch.Tensor) -> Iterator[Op]:
    value, weight, bias = args[:3]
    transposed, groups = args[6], args[8]
    yield from _made_dense(value, weight)
    yield _conv_product("convolution", "", value, weight, out, groups, transposed=transposed)
    if bias is not None:
        yield _bias("convolution", out, written=size_of(out))


def _convolution_backward(args: Any, out: Any) -> Iterator[Op]:
    grad, value, weight = args[:3]
    transposed, groups, mask = args[7], args[9], args[10]
    yield from _made_dense(value, weight)
    yield from _made_dense(grad, value, weight)
    for wanted, role, result in zip(mask, ("input", "weight"), out, strict=False):
        if wanted:
            yield _conv_product(
                "convolution_backward",
                role,
                value,
                weight,
                grad,
                groups,
                transposed=transposed,
                written=result,
            )
    if mask[2]:
        yield _bias("convolution_backward", grad, written=size_of(out[2]))


def _made_dense(value: torch.Tensor, *others: torch.Tensor) -> Iterator[Op]:
    """Yield the copy of a convolution's operand, if cuDNN does not support its memory layout.

    This is the case for a slice of a larger tensor's channels, and for images in another layout
    than the filters (ATen's `cudnn_conv_suggest_memory_format`).
    """
    last = torch.channels_last
    if value.dim() != 4:
        return
    is_last = any(suggest_memory_format(each) == last for each in (value, *others))
    wanted = last if is_last else torch.contiguous_format
    if value.is_contiguous(memory_format=wanted):
        return
    yield Op(
        name="contiguous",
        kind="copy",
        format=format_of(value),
        read=size_of(value),
        written=value.numel() * value.element_size(),
        elements=value.numel(),
        channels_last=is_last,
    )


def _bias(name: str, value: torch.Tensor, *, written: int) -> Op:
    """Return the work of the kernel that adds a convolution's bias or sums its gradient."""
    backward = "backward" in name
    return Op(
        name=f"{name}_bias",
        kind="reduction" if backward else "pointwise",
        format=format_of(value),
        read=size_of(value),
        written=written,
        elements=value.numel(),
        channels_last=is_channels_last(value),
    )


def _conv_product(
    name: str,
    role: str,
    value: torch.Tensor,
    weight: torch.Tensor,
    result: torch.Tensor,
    groups: int,
    *,
    transposed: bool,
    written: torch.Tensor | None = None,
) -> Op:
    """Return the work of a convolution, as the implicit matrix product that computes it.

    Args:
        name: The name of the operator.
        role: "" in the forward, else "input" or "weight", the tensor whose gradient is computed.
        value: The input.
        weight: The filters.
        result: The output of the forward, or its gradient.
        groups: The number of groups of the convolution.
        transposed: Whether the convolution is transposed, which swaps input and output.
        written: The tensor that is written; by default `result`.
    """
    window = math.prod(weight.shape[2:])
    filtered, made = (result, value) if transposed else (value, result)
    pixels = made.shape[0] * math.prod(made.shape[2:])
    in_width = filtered.shape[1] // groups
    out_width = made.shape[1] // groups
    sizes = {
        "": (pixels, out_width, in_width * window),
        "input": (filtered.shape[0] * math.prod(filtered.shape[2:]), in_width, out_width * window),
        "weight": (out_width, in_width * window, pixels),
    }
    swapped = {"": "input", "input": ""}
    m, n, k = sizes[swapped.get(role, role) if transposed else role]
    kind = "conv" if groups == 1 else "depthwise" if in_width == 1 else "grouped"
    read = {"": (value, weight), "input": (result, weight), "weight": (result, value)}[role]
    return Op(
        name=name,
        kind=kind,
        role=role,
        format=format_of(value),
        flops=2 * pixels * out_width * in_width * window * groups,
        read=sum(map(size_of, read)),
        written=size_of(result if written is None else written),
        elements=max(value.numel(), result.numel()),
        m=m,
        n=n,
        k=k,
        groups=groups,
        window=window,
        channels_last=is_channels_last(value) or is_channels_last(result),
    )
