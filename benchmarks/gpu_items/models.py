"""Items `models` and `held-out-N`: steps in PyTorch's own loop, which `halfstep advise` predicts.

The models of `held-out-N` are those that `operator_list.py` leaves out of the list of operators.
"""

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
HELD_OUT = (
    ("resnet26d", 128, True), ("resnet152", 64, True), ("resnext26ts", 128, True),
    ("efficientnet_b1", 64, True), ("mobilenetv3_small_100", 256, True), ("regnety_016", 128, True),
    ("convnext_small", 64, False), ("vit_medium_patch16_gap_240", 128, False),
    ("swin_small_patch4_window7_224", 64, False), ("densenet169", 64, False),
    ("mixer_s16_224", 256, False), ("xception41", 64, False),
)  # fmt: skip
PIXELS = {"vit_medium_patch16_gap_240": 240}
RECIPES = ("tf32", "bf16", "fp16")


def rows(at: At, piece: str = "", pieces: str = "1") -> Iterator[Row]:
    """Yield the figures of each model under each recipe; a ratio is to tf32.

    Args:
        at: The device.
        piece: Which of the held-out models: every one from this on; "" for the other models.
        pieces: The distance from one of them to the next.
    """
    models = HELD_OUT[int(piece) :: int(pieces)] if piece else MODELS
    recipes = ("fp32", *RECIPES) if piece else RECIPES
    for name, batch, channels_last in models[:1] if at.toy else models:
        task = images(name, batch, PIXELS.get(name, 224), at, channels_last=channels_last)
        variants = [variant(task, recipe) for recipe in recipes]
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
