"""Groups of torch dtypes, for code that handles tensors. Importing this module imports torch."""

import torch

HALVES = (torch.float16, torch.bfloat16)
"""The dtypes of half precision; `limits.HALVES` has the names of these formats."""
