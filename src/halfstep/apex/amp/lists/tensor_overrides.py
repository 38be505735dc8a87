"""Methods of tensors, without those that are also functions of `torch` (see `torch_overrides`)."""

import torch

MODULE = torch.Tensor

FP16_FUNCS = ["__matmul__"]
FP16_FUNCS_SINCE = ["__rmatmul__"]

FP32_FUNCS = ["__ipow__", "__pow__", "__rpow__", "cpu"]
FP32_FUNCS_SINCE: list[str] = []

CASTS = [
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"),
    *("__div__", "__rdiv__", "__truediv__", "__rtruediv__"),
    *("__eq__", "__ge__", "__gt__", "__le__", "__lt__", "__ne__"),
    *("__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__"),
]
CASTS_SINCE: list[str] = []
