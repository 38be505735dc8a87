"""`apex.multi_tensor_apply`, as in an Apex that was built without compiled extensions.

Programs ask `multi_tensor_applier.available`, and what they do without it is what runs here.
"""

from halfstep.apex.multi_tensor_apply.multi_tensor_apply import MultiTensorApply

__all__ = ["MultiTensorApply", "multi_tensor_applier"]

multi_tensor_applier = MultiTensorApply(2048 * 32)
