"""`amp_C`: those of Apex's compiled kernels that programs call, in PyTorch.

Each kernel takes the arguments that `multi_tensor_applier` passes. A list may contain tensors of
several formats; arithmetic is at least fp32. A kernel sets `noop_flag` to 1 when Apex's kernel
does, and never clears it.
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
        noop_flag: Not used; non-finite values make the norm non-finite.
        tensor_lists: One list of n tensors of any shapes.
        per_tensor: Whether to return the norm of each tensor too.

    Returns:
        The norm over all tensors, of shape [1], and the norms of the single tensors, of shape [n],
        or [0] without `per_tensor`. Both are fp32.
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
    """Multiply a list of tensors by a number, and write the results into another list.

    Args:
        chunk_size: Not used.
        noop_flag: Integer of shape [1]; set to 1 if an input has a non-finite value.
        tensor_lists: The input tensors, and the tensors to write.
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
        noop_flag: Integer of shape [1]; set to 1 if a checked tensor has a non-finite value.
        tensor_lists: x, y and the tensors to write.
        a: Factor of x.
        b: Factor of y.
        arg_to_check: 0 checks x, 1 checks y, -1 checks both.
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
