"""Item `trainer`: the parts of a step of the trainer on the digits, as `halfstep bench step`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from gpu_items.turns import spread
from halfstep.bench.step import bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

RECIPES = "fp32,bf16,fp16,o2"


def rows(at: At) -> Iterator[Row]:
    """Yield the milliseconds of each part, over the steps of all rounds."""
    outcome = bench(
        "digits",
        options=(),
        device_name=at.device,
        recipes="fp32" if at.toy else RECIPES,
        steps=1 if at.toy else 50,
        warmup=0 if at.toy else 10,
        rounds=1 if at.toy else 3,
        console=Console(file=io.StringIO()),
    )
    for recipe, rounds in outcome.figures["steps"].items():
        steps = [step for each in rounds for step in each]
        parts = {part: spread(1e3 * step[part] for step in steps) for part in steps[0]}
        whole = spread(1e3 * sum(step.values()) for step in steps)
        yield {"of": "digits", "recipe": recipe, "ms": whole, "parts_ms": parts}
