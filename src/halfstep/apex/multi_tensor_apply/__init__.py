"""`apex.multi_tensor_apply`: calls the kernels of `amp_C`."""

from halfstep.apex.multi_tensor_apply.multi_tensor_apply import MultiTensorApply

__all__ = ["MultiTensorApply", "multi_tensor_applier"]

multi_tensor_applier = MultiTensorApply(2048 * 32)
"""The object that programs call with a kernel of `amp_C`."""
