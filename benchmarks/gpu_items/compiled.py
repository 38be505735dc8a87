"""Items `compiled-*`: a compiled ResNet-50 beside PyTorch's own loop.

Each recipe is an item of its own, because a ResNet-50 compiles for 20 to 40 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_items.steps import AUTOCAST, by_engine, by_torch, images
from gpu_items.turns import COMPILES, Variant, alternate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row


def rows(at: At, recipe: str) -> Iterator[Row]:
    """Yield the figures of PyTorch's loop and of the engine, with compiled models."""
    task = images("resnet50", 256, 224, at, channels_last=True)
    backend = "eager" if at.toy else "inductor"
    own = recipe if recipe in AUTOCAST else "fp16"
    peer = f"PyTorch, {own}, compiled"
    variants = [
        Variant(peer, lambda _: by_torch(task, own, backend=backend)),
        Variant(
            f"engine, {recipe}, compiled",
            lambda opened: by_engine(task, recipe, opened, backend=backend),
            peer,
        ),
    ]
    for row in alternate(variants, at, to_start=COMPILES):
        yield {"of": task.of, **row}
