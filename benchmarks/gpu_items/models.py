"""Item `models`: steps of other models in PyTorch's own loop, which `halfstep advise` predicts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gpu_items.steps import by_torch, fp32_products, images
from gpu_items.turns import Variant, alternate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.steps import Task
    from gpu_items.turns import Row

MODELS = (
    ("resnet18", 256, True),
    ("convnext_tiny", 64, False),
    ("efficientnet_b0", 64, False),
    ("resnet18", 256, False),
    ("vit_small_patch16_224", 256, False),
)
"""The name, the number of images of 224 px, and whether they are in NHWC."""
RECIPES = ("tf32", "bf16", "fp16")


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of each model under each recipe; a ratio is to tf32."""
    for name, batch, channels_last in MODELS[:1] if at.toy else MODELS:
        task = images(name, batch, 224, at, channels_last=channels_last)
        variants = [variant(task, recipe) for recipe in RECIPES]
        for row in alternate(variants, at):
            yield {"of": task.of, **row}


def variant(task: Task, recipe: str) -> Variant:
    """Return PyTorch's own loop under a recipe; TF32 is a setting of the process."""
    tf32 = recipe == "tf32"
    return Variant(
        f"PyTorch, {recipe}",
        lambda _: by_torch(task, recipe),
        "" if tf32 else "PyTorch, tf32",
        partial(fp32_products, tf32=tf32),
    )
