"""Item `packing`: the speed of packing and unpacking alone, by bits and dtype."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from gpu_items.turns import Variant, alternate, rounded
from halfstep.mechanisms.activations import norm_backward
from halfstep.mechanisms.activations.packing import BITS, DTYPES, Draw, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_items import At
    from gpu_items.turns import Row

ELEMENTS = 2**28
COPY = "copy"


def rows(at: At) -> Iterator[Row]:
    """Yield the gigabytes a second of each kernel, read and written together.

    Each is compiled once: packing and unpacking for each number of bits and dtype, a mask and its
    use for each dtype, which are 30 in all; and three of the backward of batch norm.
    """
    for dtype in DTYPES:
        yield from _of(dtype, at)
    yield from _of_batch_norm(at)


def _of(dtype: torch.dtype, at: At) -> Iterator[Row]:
    elements = 2**12 if at.toy else ELEMENTS
    values = torch.randn(elements, device=at.device, dtype=dtype)
    bits = torch.ops.halfstep.mask(values)
    steps: dict[str, Callable[[], object]] = {
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
    kind = str(dtype).removeprefix("torch.")
    yield from _speeds(f"{elements:,} elements of {kind}", values, steps, moved, at)


def _of_batch_norm(at: At) -> Iterator[Row]:
    """Yield the speed of the backward of batch norm and a rectifier, from codes and unpacked."""
    elements, channels = 2**12 if at.toy else ELEMENTS, 256
    gradient = torch.randn(elements, device=at.device, dtype=torch.float16)
    mask, packed = torch.ops.halfstep.mask(gradient), pack(gradient, 4, draw=Draw(1))
    ones, training = torch.ones(channels, device=at.device), True

    def from_codes() -> object:
        masked, partial = norm_backward.sums(gradient, mask, packed, channels)
        return norm_backward.gradients(masked, partial, packed, ones, ones)

    def unpacked() -> object:
        masked = torch.ops.halfstep.masked(gradient, mask).view(-1, channels)
        return torch.ops.aten.native_batch_norm_backward(
            masked, packed.unpack().view(-1, channels), ones * ones, None, None,
            torch.zeros_like(ones), torch.ones_like(ones), training, 1e-5, [True] * 3,
        )  # fmt: skip

    size, codes, bits = gradient.nbytes, packed.nbytes, mask.nbytes
    names = "batch norm backward", "batch norm backward, unpacked"
    moved = {
        COPY: 2 * size,
        names[0]: 4 * size + bits + 2 * codes,
        names[1]: 8 * size + bits + codes,
    }
    steps = dict(zip(names, (from_codes, unpacked), strict=True))
    of = f"{elements:,} elements of float16, {channels} channels, 4 bits"
    yield from _speeds(of, gradient, steps, moved, at)


def _speeds(
    of: str,
    values: torch.Tensor,
    steps: dict[str, Callable[[], object]],
    moved: dict[str, int],
    at: At,
) -> Iterator[Row]:
    """Yield a row of each step beside a copy of `values`; `moved` has the bytes of each."""
    variants = [Variant(COPY, lambda _: values.clone)]
    variants += [Variant(name, lambda _, step=step: step, COPY) for name, step in steps.items()]
    for row in alternate(variants, at):
        speeds = {}
        if "ms" in row:
            taken = {name: row["ms"][name] for name in ("median", "high", "low")}
            rate = {name: rounded(moved[row["variant"]] / 1e6 / ms) for name, ms in taken.items()}
            # The longest times are the lowest speeds.
            speeds = {"median": rate["median"], "low": rate["high"], "high": rate["low"]}
        yield {"of": of, **row, "GB_per_s": speeds}
