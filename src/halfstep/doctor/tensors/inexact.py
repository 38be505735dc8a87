"""Tensors that may contain inf or NaN: floating-point and complex ones."""

from __future__ import annotations

import torch


def is_inexact(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is floating-point or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def real_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the numbers that a tensor stores.

    Of a sparse tensor, these are its values; of a complex one, its real and imaginary parts along a
    last dimension.
    """
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
