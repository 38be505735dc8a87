"""Item `loop`: the engine beside PyTorch's own loop, on ResNet-50 and on a step of the host's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_items.steps import beside, fp32_products, images, inspection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

CLIP = 1.0


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of each recipe, the most telling first."""
    large = images("resnet50", 256, 224, at, channels_last=True)
    yield from beside(large, "fp16", at, others=("o2",))
    yield from beside(large, "bf16", at)
    small = images("resnet18", 32, 64, at)
    yield from beside(small, "fp16", at, clip=CLIP, inspect=inspection(at))
    for recipe in ("tf32", "fp32"):
        with fp32_products(tf32=recipe == "tf32"):
            yield from beside(large, recipe, at)
    yield from beside(small, "bf16", at, clip=CLIP, inspect=inspection(at))
