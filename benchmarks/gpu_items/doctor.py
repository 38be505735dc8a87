"""Item `doctor`: a step of PyTorch's own loop under doctor, beside the same step alone.

doctor examines the first steps of a program more closely, so they are not timed. Without a gradient
scaler, doctor waits for the device once a step, and with `hold_back` it does not.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from gpu_items.steps import by_torch, images
from gpu_items.turns import Variant, alternate
from halfstep.doctor import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

RECIPES = ("bf16", "fp16")
CLOSE_LOOK = 17
"""Steps at the start that doctor examines more closely."""
PEER = "alone"


def rows(at: At) -> Iterator[Row]:
    """Yield the figures of each recipe."""
    task = images("resnet50", 64, 224, at)
    for recipe in RECIPES[:1] if at.toy else RECIPES:
        step = by_torch(task, recipe)
        troubles: list[str] = []
        variants = [Variant(PEER, lambda _, step=step: step)]
        variants += [
            Variant(
                name,
                lambda _, step=step: step,
                PEER,
                partial(watched, troubles, hold_back=hold_back),
                CLOSE_LOOK,
            )
            for name, hold_back in (("doctor", False), ("doctor, hold_back", True))
        ]
        for row in alternate(variants, at):
            yield {"of": f"{task.of}, {recipe}", **row, "troubles": troubles}


@contextmanager
def watched(troubles: list[str], *, hold_back: bool) -> Iterator[None]:
    """Let doctor watch the block, and add the errors in its own work to `troubles`."""
    with Watch(waits=True, hold_back=hold_back) as watch:
        yield
        troubles += watch.troubles
        watch.abandon()  # a diagnosis would repeat the last step
