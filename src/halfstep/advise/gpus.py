"""GPUs as their makers describe them: the table `gpus.toml`, and how one is found in it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from halfstep.errors import UserError, closest

TABLE = Path(__file__).with_name("gpus.toml")

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        key: Its name in the table and on the command line.
        name: What its maker calls it.
        aliases: Other names that it is found by.
        architecture: Its family: "ampere".
        fp16: Peak of half products, TFLOP/s, dense, accumulated in fp32; bf16's too, where the GPU
            has that.
        fp32: Peak of fp32 outside tensor cores, TFLOP/s.
        bandwidth: Of its memory, GB/s.
        memory: GiB.
        cache: MiB of its last cache level.
        process: What its manufacturing process is called, in nm.
        sms: Streaming multiprocessors.
        clock: Boost clock, MHz.
        power: Limit, watts.
        source: Where the figures are from.
        tf32: Peak of TF32 products, TFLOP/s; None where products in fp32 stay fp32.
        fp8: Peak of FP8 products, TFLOP/s; None where it has none.
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

    def has(self, format_: str) -> bool:
        """Tell whether products in a format have units of their own."""
        if format_ == "bf16":
            return self.architecture not in ("volta", "turing")
        if format_ in ("tf32", "fp8"):
            return (self.tf32 if format_ == "tf32" else self.fp8) is not None
        return True

    def peak(self, format_: str) -> float:
        """Return the peak of products in a format, FLOP/s; that of fp32 where it has no units."""
        if format_ in ("fp16", "bf16") and self.has(format_):
            return self.fp16 * 1e12
        if format_ == "tf32" and self.tf32 is not None:
            return self.tf32 * 1e12
        if format_ == "fp8" and self.fp8 is not None:
            return self.fp8 * 1e12
        if format_ == "fp64":
            return self.fp32 * 1e12 / 32
        return self.fp32 * 1e12

    @property
    def energy(self) -> float:
        """Energy of an operation beside that of a 12 nm GPU, as far as the process decides it."""
        return self.process / 12

    @property
    def bytes(self) -> int:
        """Its memory in bytes."""
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
    """Find a GPU by its key or another of its names; case, spaces and dashes do not matter.

    Raises:
        UserError: If there is none.
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
    """Read `--gpu h100,rtx4090`; "none" is for no GPU.

    Raises:
        UserError: If one is unknown, named twice, or none is named.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if [name.lower() for name in names] == ["none"]:
        return ()
    found = tuple(gpu(name) for name in names)
    if not found or len(set(found)) < len(found):
        raise UserError(f"--gpu is {text!r}; name each GPU once, as in --gpu h100,rtx4090,t4")
    return found
