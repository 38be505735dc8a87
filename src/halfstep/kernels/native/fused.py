"""`fused.c`: operations in one pass over CPU memory, for which PyTorch needs several passes.

A function that returns False has done nothing, because there is no compiler or because it does not
support the tensors. Its caller then does the same with PyTorch.
"""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from halfstep.kernels.native.compiled import at, in_threads, load
from halfstep.kernels.native.half import HEADER, is_dense, places

if TYPE_CHECKING:
    from collections.abc import Sequence

_SOURCE = Path(__file__).with_name("fused.c")
_GENERATOR_BYTES = 5056
"""Size of the state of torch's CPU generator, as `fused.c` reads it."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None if they cannot be compiled or loaded."""
    return load(
        _SOURCE, HEADER, otherwise="weight updates are rounded by plain PyTorch, which is slow"
    )


def round_stochastically(
    value: torch.Tensor, rounded: torch.Tensor, generator: torch.Generator
) -> bool:
    """Round fp32 into a bf16 tensor, with the same random numbers as `torch.randint(1 << 16)`."""
    functions = library()
    if functions is None or not (_is(value, torch.float32) and _is(rounded, torch.bfloat16)):
        return False
    state = generator.get_state()
    if not _draws_as_torch():
        return False
    functions.stochastic_bf16(at(value), at(rounded), ctypes.c_int64(value.numel()), at(state))
    torch.autograd.graph.increment_version(rounded)
    generator.set_state(state)
    return True


class SGDSettings(NamedTuple):
    """The settings of a `torch.optim.SGD`, with the same names."""

    lr: float
    momentum: float
    dampening: float
    weight_decay: float
    nesterov: bool

    def as_arguments(self) -> tuple[Any, ...]:
        """Return the settings as arguments of the C functions."""
        return (
            ctypes.c_float(self.weight_decay),
            ctypes.c_float(self.momentum),
            ctypes.c_float(1 - self.dampening),
            ctypes.c_int32(self.nesterov),
            ctypes.c_float(-self.lr),
        )


def can_step_sgd(param: torch.Tensor, grad: torch.Tensor, momentum: torch.Tensor | None) -> bool:
    """Tell whether the code below can update these tensors with the same bits as PyTorch.

    Args:
        param: Weights: fp32 for `SGDOnArrays`, bf16 for `step_sgd_stochastically`.
        grad: The gradient of `param`, in the same format.
        momentum: The fp32 momentum buffer; None without momentum.
    """
    if param.dtype == torch.float32:
        # A step asks this for each parameter, so without loops.
        return (
            is_dense(param)
            and is_dense(grad)
            and grad.stride() == param.stride()
            and (momentum is None or (is_dense(momentum) and momentum.stride() == param.stride()))
            and library() is not None
            and _steps_as_torch()
        )
    # Contiguous tensors only, because random numbers are drawn in the order of the elements.
    known = _is(param, torch.bfloat16) and _is(grad, torch.bfloat16)
    known = known and (momentum is None or _is(momentum, torch.float32))
    return known and library() is not None and _steps_as_torch() and _draws_as_torch()


class SGDOnArrays:
    """Steps of SGD on a list of fp32 weights, each in one pass and one call.

    `can_step_sgd` must have returned True for each.

    Args:
        params: Weights of any shapes, updated in place.
        momenta: Their momentum buffers, updated in place; empty without momentum.
    """

    def __init__(self, params: Sequence[torch.Tensor], momenta: Sequence[torch.Tensor]) -> None:
        self._changed = [*params, *momenta]
        self._places = [*map(torch.Tensor.data_ptr, self._changed)]
        self._arrays = places(params), places(momenta) if momenta else None
        ends = list(accumulate([param.numel() for param in params]))
        self._ends = (ctypes.c_int64 * len(ends))(*ends)

    def is_in_place(self) -> bool:
        """Tell whether weights and buffers are at the addresses where they were."""
        return [*map(torch.Tensor.data_ptr, self._changed)] == self._places

    def step(self, grads: Sequence[torch.Tensor], settings: SGDSettings) -> None:
        """Take a step.

        Args:
            grads: The gradients of the weights.
            settings: The settings of the optimizer.
        """
        functions = library()
        assert functions is not None, "its caller has asked"
        (params, momenta), numbers = self._arrays, settings.as_arguments()
        lists, elements = (params, places(grads), momenta, self._ends), self._ends[-1]

        def part(first: int, count: int) -> None:
            functions.sgd_fp32(*lists, ctypes.c_int64(first), ctypes.c_int64(count), *numbers)

        in_threads(part, elements, elements)
        torch.autograd.graph.increment_version(self._changed)


def step_sgd_stochastically(
    param: torch.Tensor,
    grad: torch.Tensor,
    momentum: torch.Tensor | None,
    settings: SGDSettings,
    generator: torch.Generator,
) -> None:
    """Take a step of SGD on bf16 weights in fp32 and round stochastically, in one pass.

    `can_step_sgd` must have returned True.

    Args:
        param: Weights of any shape, updated in place.
        grad: The gradient of `param`.
        momentum: The momentum buffer, updated in place; None without momentum.
        settings: The settings of the optimizer.
        generator: Source of the random numbers, on the CPU.
    """
    functions = library()
    assert functions is not None, "its caller has asked"
    state = generator.get_state()
    functions.sgd_stochastic_bf16(
        at(param),
        at(grad),
        ctypes.c_void_p() if momentum is None else at(momentum),
        ctypes.c_int64(param.numel()),
        *settings.as_arguments(),
        at(state),
    )
    torch.autograd.graph.increment_version(param)
    if momentum is not None:
        torch.autograd.graph.increment_version(momentum)
    generator.set_state(state)


def round_compensated(value: torch.Tensor, rounded: torch.Tensor, lost: torch.Tensor) -> bool:
    """Round fp32 to the nearest bf16, and the rounding error (`lost`) to bf16 as well."""
    functions = library()
    known = _is(value, torch.float32) and all(_is(t, torch.bfloat16) for t in (rounded, lost))
    if functions is None or not known:
        return False
    functions.kahan_bf16(at(value), at(rounded), at(lost), ctypes.c_int64(value.numel()))
    return True


def _is(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Tell whether C can read a tensor: of `dtype`, contiguous in CPU memory, not a subclass."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.dtype == dtype
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
    )


@cache
def _draws_as_torch() -> bool:
    """Tell whether the C generator draws the same numbers as torch's; tested once, over two states.

    A state contains 624 numbers, so the test also covers the computation of the next state.
    """
    functions = library()
    assert functions is not None, "its caller has asked"
    count = 1500
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    state, rounded = one.get_state(), torch.empty(count, dtype=torch.bfloat16)
    if state.numel() != _GENERATOR_BYTES:
        return False
    values = torch.ones(count)
    functions.stochastic_bf16(at(values), at(rounded), ctypes.c_int64(count), at(state))
    drawn = torch.randint(1 << 16, (count,), dtype=torch.int32, generator=other)
    expected = ((values.view(torch.int32) + drawn) >> 16).to(torch.int16)
    return torch.equal(rounded.view(torch.int16), expected) and torch.equal(
        state, other.get_state()
    )


@cache
def _steps_as_torch() -> bool:
    """Tell whether steps in C have the same bits as torch's; tested once, for some lengths."""
    functions = library()
    assert functions is not None, "its caller has asked"
    if not ctypes.c_int32.in_dll(functions, "has_fma").value:
        return False
    source = torch.Generator().manual_seed(1)
    settings = SGDSettings(0.1, 0.9, 0.1, 1e-3, nesterov=True)
    for count in (1, 7, 64, 4096 + 23):
        expected, grad, momentum = (torch.randn(count, generator=source) for _ in range(3))
        param, buffer = expected.clone(), momentum.clone()
        SGDOnArrays([param], [buffer]).step([grad], settings)
        # Without an optimizer, whose step would call global hooks of other code.
        slope = grad.add(expected, alpha=settings.weight_decay)
        momentum.mul_(settings.momentum).add_(slope, alpha=1 - settings.dampening)
        slope = slope.add(momentum, alpha=settings.momentum)
        expected.add_(slope, alpha=-settings.lr)
        if not (torch.equal(buffer, momentum) and torch.equal(param, expected)):
            return False
    return True
