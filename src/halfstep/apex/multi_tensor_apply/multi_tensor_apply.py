"""The caller of Apex's multi-tensor kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class MultiTensorApply:
    """Calls a kernel of `amp_C` on lists of tensors.

    Args:
        chunk_size: Number of elements that Apex's kernels processed at a time; no effect here.

    Attributes:
        available: Always True, because `halfstep.apex.amp_C` has the kernels that programs call.
    """

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> None:
        """Do nothing, because the kernels are always available."""

    def __call__(
        self, op: Callable[..., Any], noop_flag_buffer: Any, tensor_lists: Any, *args: Any
    ) -> Any:
        """Call `op` and return its result."""
        return op(self.chunk_size, noop_flag_buffer, tensor_lists, *args)
