"""Which of torch's functions O1 casts, and how, by the names that programs call.

Apex's lists under Apex's names: programs change them before `amp.initialize`, as in
`amp.lists.functional_overrides.FP32_FUNCS.remove("softmax")`. What torch has gained since, and
autocast on CUDA treats the same way, stands apart (`..._SINCE`). A name that a version of torch
does not have is passed over.
"""

from halfstep.apex.amp.lists import functional_overrides, tensor_overrides, torch_overrides

__all__ = ["functional_overrides", "tensor_overrides", "torch_overrides"]
