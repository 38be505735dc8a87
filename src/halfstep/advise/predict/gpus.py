"""GPUs by their datasheets: the table `gpus.toml`, and functions that find a GPU in it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from halfstep.errors import UserError, closest
from halfstep.formats import FORMATS

TABLE = Path(__file__).with_name("gpus.toml")

GIB = 2**30

CAUTIONS = {
    "hopper": "four models were measured on an H100: steps took 1.4 to 2.4 times as long as "
    "predicted in tf32, and 1.1 to 2.2 times in half precision. So the intervals are too "
    "narrow, and the speed-up of half precision over tf32 can be larger than predicted: measure "
    "it before you decide."
}
"""By architecture: how far off predictions were that have been compared with own measurements."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """The datasheet of one GPU.

    Attributes:
        key: The name in the table and on the command line.
        name: The manufacturer's name.
        aliases: Other names that are accepted on the command line.
        architecture: The architecture, such as "ampere".
        fp16: Dense peak rate of fp16 products with accumulation in fp32, in TFLOP/s; also that of
            bf16 if the GPU supports bf16.
        fp32: Peak rate of fp32 outside tensor cores, in TFLOP/s.
        bandwidth: Memory bandwidth, in GB/s.
        memory: Memory size, in GiB.
        cache: Size of the last cache level, in MiB.
        process: Nominal size of the manufacturing process, in nm.
        sms: Number of streaming multiprocessors.
        clock: Boost clock, in MHz.
        power: Power limit, in watts.
        source: Source of the figures.
        tf32: Peak rate of TF32 products, in TFLOP/s; None if the GPU does not support TF32.
        fp8: Peak rate of FP8 products, in TFLOP/s; None if the GPU does not support FP8.
    """

    key: str
    name: str
    aliases: tuple[str, ...]
    architecture: str
    fp16: float
    fp32: float
    bandwidth: float
    memory: float
    cache: float
    process: float
    sms: int
    clock: float
    power: float
    source: str
    tf32: float | None = None
    fp8: float | None = None

    @property
    def reference(self) -> str:
        """The recipe that speed-ups are relative to: tf32 if the GPU supports it, or else fp32."""
        return "tf32" if self.has("tf32") else "fp32"

    def has(self, format_: str) -> bool:
        """Tell whether the GPU has hardware units for products in a format."""
        if format_ == "bf16":
            return self.architecture not in ("volta", "turing")
        return format_ not in FORMATS or self._rate(format_) is not None

    def peak(self, format_: str) -> float:
        """Return the peak rate of products in a format, in FLOP/s; without units for it, fp32's."""
        if format_ == "fp64":
            return self.fp32 * 1e12 / 32
        rate = self._rate(format_) if self.has(format_) else None
        return (rate or self.fp32) * 1e12

    def _rate(self, format_: str) -> float | None:
        rate: float | None = getattr(self, FORMATS[format_].rate, None)
        return rate

    @property
    def caution(self) -> str:
        """How far off the predictions for this architecture were; "" if unknown."""
        return CAUTIONS.get(self.architecture, "")

    @property
    def energy(self) -> float:
        """Energy per operation relative to a 12 nm GPU, estimated only from the process."""
        return self.process / 12

    @property
    def bytes(self) -> int:
        """Memory size in bytes."""
        return int(self.memory * GIB)


@cache
def gpus() -> dict[str, Gpu]:
    """Return every GPU of the table by its key."""
    rows = tomllib.loads(TABLE.read_text())
    known = {field.name for field in fields(Gpu)}
    assert all(set(row) < known for row in rows.values())
    return {
        key: Gpu(key=key, **{**row, "aliases": tuple(row["aliases"])}) for key, row in rows.items()
    }


def gpu(name: str) -> Gpu:
    """Find a GPU by its key or an alias; case, spaces and dashes do not matter.

    Raises:
        UserError: If no GPU has this name.
    """
    wanted = "_".join(name.strip().lower().replace("-", " ").replace("_", " ").split())
    names = {each: row for row in gpus().values() for each in (row.key, *row.aliases)}
    squeezed = {each.replace("_", ""): row for each, row in names.items()}
    found = names.get(wanted) or squeezed.get(wanted.replace("_", ""))
    if found is None:
        raise UserError(
            f"no GPU is named {name!r}; allowed: {', '.join(gpus())}, and short names such as h100 "
            f"for h100_sxm{closest(wanted, names)}"
        )
    return found


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parse the value of a flag such as `--gpu h100,rtx4090`; "none" means no GPU.

    Raises:
        UserError: If a GPU is unknown or named twice, or the value names no GPU.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if [name.lower() for name in names] == ["none"]:
        return ()
    found = tuple(gpu(name) for name in names)
    if not found or len(set(found)) < len(found):
        raise UserError(f"--gpu is {text!r}; name each GPU once, as in --gpu h100,rtx4090,t4")
    return found
