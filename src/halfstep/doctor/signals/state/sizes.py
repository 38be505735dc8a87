"""Measures the growth of parameters, from their norms before the first step.

The initial norm of each parameter is computed once and stays on the device. It is read only when a
bad step, or the last step, is examined.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record import Grown
from halfstep.doctor.tensors.local import local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Sizes:
    """Remembers the initial norms of parameters."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def start(self, parameters: Iterable[torch.Tensor]) -> None:
        """Store the norms of parameters before their first step; stored norms are not replaced."""
        new = [each for each in parameters if id(each) not in self._before]
        for each, norm in zip(new, _norms(new), strict=True):
            self._before[id(each)] = weakref.ref(each), norm

    def read(self, names: Mapping[str, torch.Tensor]) -> tuple[Grown, ...]:
        """Return the initial and the current norms of parameters; waits for the device.

        Args:
            names: Parameters by name.
        """
        known = {
            name: each
            for name, each in names.items()
            if id(each) in self._before and self._before[id(each)][0]() is each
        }
        return tuple(
            Grown(name, self._before[id(each)][1].item(), norm.item())
            for (name, each), norm in zip(known.items(), _norms(known.values()), strict=True)
        )


def _norms(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    # In fp32, the square of an element above 1.8e19 would be inf.
    return [
        torch.linalg.vector_norm(local(each).detach(), dtype=_in_fp64(each)) for each in parameters
    ]


def _in_fp64(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64
