"""The names of torch's functions that O1 casts, by the format that it casts their inputs to.

The lists and their names are Apex's, because programs change them before `amp.initialize`, as in
`amp.lists.functional_overrides.FP32_FUNCS.remove("softmax")`. The lists `..._SINCE` contain
functions that torch got later; CUDA's autocast casts them to the same format. A name that the
installed torch does not have is skipped.
"""

from halfstep.apex.amp.lists import functional_overrides, tensor_overrides, torch_overrides

__all__ = ["functional_overrides", "tensor_overrides", "torch_overrides"]
