"""GPUs by their datasheets: the table `gpus.toml`, and functions that find a GPU in it."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from halfstep.errors import UserError, closest, in_a_line
from halfstep.formats import FORMATS

TABLE = Path(__file__).with_name("gpus.toml")

GIB = 2**30

_OLD_SOFTWARE = ("volta", "turing", "ampere", "ada")
_CURRENT_SOFTWARE = ("hopper",)
_CAUTIONS = {
    "old software": "this architecture was measured only with software of 2020 to 2023, most of it "
    "PyTorch 1.12; constants from such measurements were off by 19 % in half precision and by 32 % "
    "to 35 % in fp32 and tf32 on an H200 with PyTorch 2.11",
    "never measured": "no GPU of this architecture was measured; the times are those of measured "
    "architectures, in proportion to the figures of the datasheets",
}
"""What is not known of an architecture."""


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
        """What is not known of this architecture; "" if current software was measured on it."""
        if self.architecture in _CURRENT_SOFTWARE:
            return ""
        old = self.architecture in _OLD_SOFTWARE
        return _CAUTIONS["old software" if old else "never measured"]

    @property
    def energy(self) -> float:
        """Energy per operation relative to a 12 nm GPU, estimated only from the process."""
        return self.process / 12

    @property
    def bytes(self) -> int:
        """Memory size in bytes."""
        return int(self.memory * GIB)


_OPTIONAL = {"aliases", "name", "source", "tf32", "fp8"}
_TEXTS = {"name", "architecture", "source"}
_WHOLE = {"sms"}


def read(path: Path) -> dict[str, Gpu]:
    """Return every GPU of a table by its key.

    Raises:
        UserError: If the file cannot be read, or a row lacks a figure or has a wrong one.
    """
    try:
        rows = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path} is no table of GPUs: {in_a_line(error)}") from None
    if not rows:
        raise UserError(f"{path} has no GPU; begin one with a line such as [mine]")
    return {key: _gpu(path, key, row) for key, row in rows.items()}


def _gpu(path: Path, key: str, row: object) -> Gpu:
    at = f"{path}, [{key}]"
    if not isinstance(row, dict):
        raise UserError(
            f"{path}: {key} stands outside a table; begin one with a line such as [mine]"
        )
    names = {field.name for field in fields(Gpu)} - {"key"}
    for name in sorted(row.keys() - names):
        allowed = ", ".join(sorted(names))
        raise UserError(f"{at}: unknown field {name!r}; allowed: {allowed}{closest(name, names)}")
    if missing := sorted(names - _OPTIONAL - row.keys()):
        raise UserError(f"{at} lacks {', '.join(missing)}; copy a row of {TABLE} as a pattern")
    for name, value in row.items():
        _check(f"{at}, {name}", name, value)
    given: dict[str, Any] = {"name": key, "source": str(path), "aliases": ()} | row
    return Gpu(key=key, **{**given, "aliases": tuple(given["aliases"])})


def _check(at: str, name: str, value: object) -> None:
    if name == "aliases":
        right, allowed = isinstance(value, list), "a list of names"
    elif name in _TEXTS:
        right, allowed = isinstance(value, str) and bool(value), "a text in quotes"
    else:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        right = number and 0 < float(str(value)) < math.inf
        allowed = "a positive number"
        if name in _WHOLE:
            right, allowed = right and isinstance(value, int), "a positive whole number"
    if not right:
        raise UserError(f"{at} is {value!r}; allowed: {allowed}")


@cache
def gpus() -> dict[str, Gpu]:
    """Return every GPU of the shipped table by its key."""
    return read(TABLE)


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
            f"for h100_sxm; or your own file, such as mine.toml{closest(wanted, names)}"
        )
    return found


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Parse the value of a flag such as `--gpu h100,mine.toml`; "none" means no GPU.

    A name that ends in ".toml" stands for every GPU of that file.

    Raises:
        UserError: If a GPU is unknown or named twice, the value names no GPU, or a file is wrong.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if [name.lower() for name in names] == ["none"]:
        return ()
    found = tuple(
        each
        for name in names
        for each in (read(Path(name)).values() if name.endswith(".toml") else [gpu(name)])
    )
    if not found or len(set(found)) < len(found):
        raise UserError(f"--gpu is {text!r}; name each GPU once, as in --gpu h100,rtx4090,t4")
    return found
