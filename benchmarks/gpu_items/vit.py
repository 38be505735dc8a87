"""Item `vit`: the engine beside PyTorch's own loop, on a ViT-B."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_items.steps import beside, images

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of each recipe."""
    task = images("vit_base_patch16_224", 128, 224, at)
    yield from beside(task, "fp16", at, others=("o2",))
    yield from beside(task, "bf16", at)
