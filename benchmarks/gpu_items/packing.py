"""Item `packing`: the speed of packing and unpacking alone, by bits and dtype."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from gpu_items.turns import Variant, alternate, rounded
from halfstep.mechanisms.activations.packing import BITS, DTYPES, Draw, pack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_items import At
    from gpu_items.turns import Row

ELEMENTS = 2**28
COPY = "copy"


def rows(at: At) -> Iterator[Row]:
    """Yield the gigabytes a second of each kernel, read and written together.

    Each is compiled once: packing and unpacking for each number of bits and dtype, a mask and its
    use for each dtype, which are 30 in all.
    """
    for dtype in DTYPES:
        yield from _of(dtype, at)


def _of(dtype: torch.dtype, at: At) -> Iterator[Row]:
    elements = 2**12 if at.toy else ELEMENTS
    values = torch.randn(elements, device=at.device, dtype=dtype)
    bits = torch.ops.halfstep.mask(values)
    steps = {
        "mask": partial(torch.ops.halfstep.mask, values),
        "masked": partial(torch.ops.halfstep.masked, values, bits),
    }
    moved = {COPY: 2 * values.nbytes, "mask": values.nbytes, "masked": 2 * values.nbytes}
    moved = {name: size + (bits.nbytes if name != COPY else 0) for name, size in moved.items()}
    for count in BITS:
        packed = pack(values, count, draw=Draw(1))
        both = {
            f"pack, {count} bits": partial(pack, values, count, draw=Draw(1)),
            f"unpack, {count} bits": packed.unpack,
        }
        moved |= dict.fromkeys(both, values.nbytes + packed.nbytes)
        steps |= both
    variants = [Variant(COPY, lambda _: values.clone)]
    variants += [Variant(name, lambda _, step=step: step, COPY) for name, step in steps.items()]
    for row in alternate(variants, at):
        speeds = {}
        if "ms" in row:
            of = {name: row["ms"][name] for name in ("median", "high", "low")}
            rate = {name: rounded(moved[row["variant"]] / 1e6 / ms) for name, ms in of.items()}
            # The longest times are the lowest speeds.
            speeds = {"median": rate["median"], "low": rate["high"], "high": rate["low"]}
        kind = str(dtype).removeprefix("torch.")
        yield {"of": f"{elements:,} elements of {kind}", **row, "GB_per_s": speeds}
