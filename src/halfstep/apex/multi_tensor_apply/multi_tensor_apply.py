"""The caller of Apex's compiled kernels, which says that there are none."""

from __future__ import annotations

from typing import Any, NoReturn


class MultiTensorApply:
    """Refuses to call a compiled kernel.

    Args:
        chunk_size: Elements that a kernel would take at a time.

    Attributes:
        available: False: `amp_C`, which has the kernels, is compiled.
    """

    available = False
    import_err = ModuleNotFoundError("No module named 'amp_C'")

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def check_avail(self) -> NoReturn:
        """Refuse.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError(
            "Attempted to call MultiTensorApply method, but MultiTensorApply is not available: "
            "amp_C is compiled code, which halfstep does not have. Write torch._foreach_mul_ for "
            "multi_tensor_scale, torch._foreach_norm or torch.nn.utils.get_total_norm for "
            "multi_tensor_l2norm, or ask multi_tensor_applier.available before"
        )

    def __call__(self, op: Any, noop_flag_buffer: Any, tensor_lists: Any, *args: Any) -> NoReturn:
        """Refuse, as `check_avail` does."""
        del op, noop_flag_buffer, tensor_lists, args
        self.check_avail()
