"""Tells in which format a product computes, for code that observes the dispatcher.

The dtype is not enough: FP8 products run on widened values, and fp32 products may be TF32.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from halfstep.formats import format_name
from halfstep.kernels.hardware import has_tf32
from halfstep.kernels.products import ON

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Marked(threading.local):
    def __init__(self) -> None:
        # With a class attribute, torch.compile would add a guard that the object has no attribute
        # of its own, and the guard would fail after the first assignment.
        self.format: str | None = None


_marked = _Marked()


class Product(torch.autograd.Function):
    """An autograd function whose result is a product, which its node in a graph then counts as."""


@contextmanager
def computing_in(format_: str) -> Iterator[None]:
    """Mark the products in this context as products in `format_`, regardless of their dtype."""
    before = _marked.format
    _marked.format = format_
    try:
        yield
    finally:
        _marked.format = before


def format_of_products(factor: torch.Tensor) -> str:
    """Return the format in which this thread now multiplies tensors with `factor`'s dtype."""
    if _marked.format is not None:
        return _marked.format
    arithmetic = (
        ON[factor.device.type].arithmetic(factor.dtype) if factor.device.type in ON else None
    )
    if arithmetic is not None and arithmetic.format is not None:
        return arithmetic.format
    if factor.dtype == torch.float32 and _has_tf32_on(factor.device):
        return "tf32"
    return format_name(factor.dtype)


def _has_tf32_on(device: torch.device) -> bool:
    return has_tf32(device) and torch.backends.cuda.matmul.fp32_precision == "tf32"
