"""`amp_C`: of the kernels that Apex compiled, those that programs call, on torch's foreach.

Each takes its arguments as `multi_tensor_applier` passes them on. Lists may mix formats; arithmetic
is fp32 at least. The flag is set to 1 where a kernel of Apex's sets it, and never cleared.
"""  # noqa: N999  (Apex's name)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    Tensors = Sequence[torch.Tensor]

__all__ = ["multi_tensor_axpby", "multi_tensor_l2norm", "multi_tensor_scale"]


def multi_tensor_l2norm(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Tensors],
    per_tensor: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the 2-norm over all tensors of a list, and of each.

    Args:
        chunk_size: Not used.
        noop_flag: Not used: a norm that is not finite says so.
        tensor_lists: One list of tensors of any shapes.
        per_tensor: Whether the norm of each tensor is wanted.

    Returns:
        The norm, of shape [1], and the norms of all tensors, of shape [n] or [0]; fp32.
    """
    del chunk_size, noop_flag
    (tensors,) = tensor_lists
    norms = torch.stack(torch._foreach_norm(_wide(tensors), 2)).float()
    each = norms if per_tensor else norms.new_empty(0)
    return torch.linalg.vector_norm(norms).reshape(1), each


@torch.no_grad()
def multi_tensor_scale(
    chunk_size: int, noop_flag: torch.Tensor, tensor_lists: Sequence[Tensors], scale: float
) -> None:
    """Write one list of tensors, multiplied by a number, into another.

    Args:
        chunk_size: Not used.
        noop_flag: Integer of shape [1]; becomes 1 where a tensor is not finite.
        tensor_lists: What is read, and what is written.
        scale: The number.
    """
    del chunk_size
    source, target = tensor_lists
    wide = _wide(source)
    _flag(noop_flag, wide)
    for written, one in zip(target, wide, strict=True):
        written.copy_(one * scale)


@torch.no_grad()
def multi_tensor_axpby(
    chunk_size: int,
    noop_flag: torch.Tensor,
    tensor_lists: Sequence[Tensors],
    a: float,
    b: float,
    arg_to_check: int = -1,
) -> None:
    """Write `a * x + b * y` for each pair of two lists into a third.

    Args:
        chunk_size: Not used.
        noop_flag: Integer of shape [1]; becomes 1 where a checked tensor is not finite.
        tensor_lists: x, y and what is written.
        a: Factor of x.
        b: Factor of y.
        arg_to_check: 0 checks x, 1 checks y, -1 both.
    """
    del chunk_size
    x, y, out = tensor_lists
    wide_x, wide_y = _wide(x), _wide(y)
    checked = {0: wide_x, 1: wide_y}.get(arg_to_check, [*wide_x, *wide_y])
    _flag(noop_flag, checked)
    for written, one, two in zip(out, wide_x, wide_y, strict=True):
        written.copy_(one * a + two * b)


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"amp_C.{name} is compiled code, which halfstep.apex does not have; it has "
        f"{', '.join(__all__)}, and apex.optimizers for the kernels of optimizers"
    )


def _wide(tensors: Tensors) -> list[torch.Tensor]:
    return [each.detach().to(torch.promote_types(each.dtype, torch.float32)) for each in tensors]


def _flag(flag: Any, tensors: Tensors) -> None:
    for each in tensors:
        flag.masked_fill_(~torch.isfinite(each).all(), 1)
