"""Changes the class of a layer temporarily; its parameters, hooks and state do not change.

The temporary class inherits from a mixin first and from the layer's own class second. So the
mixin's `forward` runs, and it calls the layer's `forward` through `super()`. Replicas in threads,
deep copies and `isinstance` continue to work.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import nn


def mix_in(layer: nn.Module, mixin: type[nn.Module]) -> None:
    """Change the class of `layer` to a subclass of `mixin` and its present class."""
    layer.__class__ = _mixed(cast("Hashable", type(layer)), cast("Hashable", mixin))


def take_out(layer: nn.Module) -> None:
    """Restore the class that `layer` had before `mix_in`."""
    layer.__class__ = type(layer).__mro__[2]


@cache
def _mixed(layer: Hashable, mixin: Hashable) -> type[nn.Module]:
    assert isinstance(layer, type)
    assert isinstance(mixin, type)
    return type(f"{mixin.__name__}{layer.__name__}", (mixin, layer), {})
