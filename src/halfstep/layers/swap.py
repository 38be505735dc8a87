"""Layers that change their class for a while, and nothing else: parameters, hooks and state stay.

What is mixed in stands before the layer's own class, so that its `forward` runs first and calls the
layer's own by `super()`. Replicas in threads, deep copies and `isinstance` go on working.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import nn


def mix_in(layer: nn.Module, mixin: type[nn.Module]) -> None:
    """Put `mixin` before the class of `layer`."""
    layer.__class__ = _mixed(cast("Hashable", type(layer)), cast("Hashable", mixin))


def take_out(layer: nn.Module) -> None:
    """Give `layer` back the class that it had before `mix_in`."""
    layer.__class__ = type(layer).__mro__[2]


@cache
def _mixed(layer: Hashable, mixin: Hashable) -> type[nn.Module]:
    assert isinstance(layer, type)
    assert isinstance(mixin, type)
    return type(f"{mixin.__name__}{layer.__name__}", (mixin, layer), {})
