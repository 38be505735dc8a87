"""The part of a sharded tensor that is in this process.

doctor computes only on this part: an operator on the whole tensor would wait for the other
processes, which do not run doctor's operators at the same time.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeGuard

import torch

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_PACKAGE = "torch.distributed.tensor"
"""The package of sharded tensors. doctor does not import it: that takes half as long as torch."""


def is_sharded(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is a `DTensor`."""
    package = sys.modules.get(_PACKAGE)  # Without it, nothing has made such a tensor.
    return package is not None and isinstance(tensor, getattr(package, "DTensor", ()))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of a tensor in this process; a plain tensor unchanged."""
    if type(tensor) in _PLAIN or not is_sharded(tensor):  # This runs for each call of the loop.
        return tensor
    part: torch.Tensor = tensor.to_local()
    return part
