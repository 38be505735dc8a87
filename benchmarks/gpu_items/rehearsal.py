"""Item `rehearsal`: what a GPU computes in fp16 and FP8, beside the rehearsals on a CPU."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import rehearsal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

STEPS = 200


def rows(at: At) -> Iterator[Row]:
    """Yield the products in FP8, then the curves in fp16; see the scripts of these comparisons."""
    yield from products(at)
    losses: dict[str, list[float]] = {}
    for how in ("fp32", "rehearsed", *(["gpu"] if at.on_gpu else [])):
        curve = rehearsal.curve(
            how, 2 if at.toy else STEPS, losses.get("fp32", []), losses.get("rehearsed", [])
        )
        losses[how] = curve.losses
        yield {"of": "fp16, a small network on digits", **asdict(curve)}


def products(at: At) -> Iterator[Row]:
    """Yield the distances of products in FP8."""
    of = "fp8, products of 64 x 64 sums"
    try:
        import fp8_distance
    except ImportError as error:
        yield {"of": of, "refused": str(error)}
        return
    for product in ("forward", "gradient"):
        for inner in fp8_distance.INNER[:1] if at.toy else fp8_distance.INNER:
            for name, value in fp8_distance.factors(inner).items():
                yield {"of": of, **asdict(fp8_distance.distance(name, value, product))}
                if at.toy:
                    break
