"""`fused.c`: what PyTorch needs several passes over memory for, in one pass, on the CPU.

Each function returns whether it did it: not where there is no compiler, and not for tensors that it
does not know. Its caller then does the same with PyTorch.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from halfstep.kernels.native.compiled import at, load
from halfstep.kernels.native.half import HEADER

_SOURCE = Path(__file__).with_name("fused.c")
_GENERATOR_BYTES = 5056
"""Of the state of torch's CPU generator, as `fused.c` reads it."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None where they cannot be had."""
    return load(
        _SOURCE, HEADER, otherwise="weight updates are rounded by plain PyTorch, which is slow"
    )


def round_stochastically(
    value: torch.Tensor, rounded: torch.Tensor, generator: torch.Generator
) -> bool:
    """Round fp32 into a bf16 tensor, with the numbers that `torch.randint(1 << 16)` would draw."""
    functions = library()
    if functions is None or not (_is(value, torch.float32) and _is(rounded, torch.bfloat16)):
        return False
    state = generator.get_state()
    if state.numel() != _GENERATOR_BYTES or not _draws_as_torch():
        return False
    functions.stochastic_bf16(at(value), at(rounded), ctypes.c_int64(value.numel()), at(state))
    torch.autograd.graph.increment_version(rounded)
    generator.set_state(state)
    return True


def round_compensated(value: torch.Tensor, rounded: torch.Tensor, lost: torch.Tensor) -> bool:
    """Round fp32 to the nearest bf16, and the difference to bf16 as well."""
    functions = library()
    known = _is(value, torch.float32) and all(_is(t, torch.bfloat16) for t in (rounded, lost))
    if functions is None or not known:
        return False
    functions.kahan_bf16(at(value), at(rounded), at(lost), ctypes.c_int64(value.numel()))
    return True


def _is(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Tell whether a tensor is one that C can read: real memory of the CPU, without gaps."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype == dtype
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
    )


@cache
def _draws_as_torch() -> bool:
    """Compare the C generator with torch's once, over two of its states."""
    functions = library()
    assert functions is not None, "its caller has asked"
    count = 1500
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    state, rounded = one.get_state(), torch.empty(count, dtype=torch.bfloat16)
    values = torch.ones(count)
    functions.stochastic_bf16(at(values), at(rounded), ctypes.c_int64(count), at(state))
    drawn = torch.randint(1 << 16, (count,), dtype=torch.int32, generator=other)
    expected = ((values.view(torch.int32) + drawn) >> 16).to(torch.int16)
    return torch.equal(rounded.view(torch.int16), expected) and torch.equal(
        state, other.get_state()
    )
