"""`packing.c`, compiled for this processor when it is first needed.

The C compiler that `torch.compile` needs on a CPU as well is all that it takes; the library is kept
in the user's cache. Without a compiler, `reference.py` does the same, many times slower.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from halfstep.kernels.packing.form import Draw, Packed, unwritten, unwritten_mask

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""What is packed, as `packing.c` calls it."""

_SOURCE = Path(__file__).with_name("packing.c")
_HEADER = _SOURCE.with_name("formats.h")
_FLAGS = (
    "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC",
)  # fmt: skip
_OF_THIS_PROCESSOR = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
"""Flags for this processor, of which compilers know more or fewer; the first that work are used."""

_WORTH_A_THREAD = 2**17
"""Elements below which starting a second thread costs more than it saves."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None where they cannot be had."""
    try:
        compiler = _compiler()
        if not compiler:
            _logger.info("no C compiler: activations are packed by plain PyTorch, which is slow")
            return None
        return ctypes.CDLL(str(_build(compiler)))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        # RuntimeError: no home; ValueError: a quotation in CC that does not end
        _logger.info("activations are packed by plain PyTorch, which is slow: %s", error)
        return None


def _compiler() -> list[str]:
    """Return the command of the C compiler, which CC may give with arguments; empty without one."""
    found = shutil.which("cc") or shutil.which("gcc")
    return shlex.split(os.environ.get("CC", "")) or ([found] if found else [])


def _build(compiler: list[str]) -> Path:
    source = _SOURCE.read_bytes() + _HEADER.read_bytes()
    flags = *_FLAGS, *chain(*_OF_THIS_PROCESSOR)
    made_of = "\n".join((*compiler, *flags, platform.machine(), _processor())).encode() + source
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfstep"
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        status = kept.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{kept} can be written by others; chmod it to 700")
    path = kept / f"packing-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=kept) as workplace:
            built = Path(workplace) / path.name
            _compile(compiler, built)
            built.replace(path)
    return path


def _compile(compiler: list[str], to: Path) -> None:
    """Compile `packing.c` with the first flags that the compiler knows.

    Raises:
        SubprocessError: If it cannot be compiled without any.
        OSError: If there is no such compiler.
    """
    for flags in _OF_THIS_PROCESSOR:
        command = [*compiler, *_FLAGS, *flags, str(_SOURCE), "-o", str(to)]
        done = subprocess.run(  # noqa: S603  # the compiler of this machine, our own source
            command, check=not flags, capture_output=True, timeout=120
        )
        if done.returncode == 0:
            return


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def pack(flat: torch.Tensor, bits: int, group: int, draw: Draw) -> Packed:
    """Do what `reference.pack` does, to a contiguous tensor on the CPU."""
    packed = unwritten(flat, bits, group)
    numbers = _uint64(draw.seed), ctypes.c_uint32(draw.stream), _uint64(draw.counter)
    kernel = _kernel("pack")

    def part(first: int, count: int) -> None:
        kernel(
            _at(flat), DTYPES[flat.dtype], _int64(flat.numel()), _int64(first), _int64(count),
            group, bits, *numbers, *map(_at, packed.tensors),
        )  # fmt: skip

    _in_threads(part, len(packed.low), flat.numel())
    return packed


def unpack(packed: Packed) -> torch.Tensor:
    """Do what `reference.unpack` does, on the CPU."""
    flat = torch.empty(packed.elements, dtype=packed.dtype)
    kernel = _kernel("unpack")

    def part(first: int, count: int) -> None:
        kernel(
            *map(_at, packed.tensors), DTYPES[packed.dtype], _int64(packed.elements),
            _int64(first), _int64(count), packed.group, packed.bits, _at(flat),
        )  # fmt: skip

    _in_threads(part, len(packed.low), packed.elements)
    return flat


def mask(values: torch.Tensor) -> torch.Tensor:
    """Do what `reference.mask` does, to a contiguous tensor on the CPU."""
    bits = unwritten_mask(values)
    dtype = _BOOL if values.dtype == torch.bool else DTYPES[values.dtype]
    kernel = _kernel("mask")

    def part(first: int, count: int) -> None:
        kernel(_at(values), dtype, _int64(values.numel()), _int64(first), _int64(count), _at(bits))

    _in_threads(part, len(bits), values.numel())
    return bits


def masked(values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Do what `reference.masked` does, to a contiguous tensor on the CPU."""
    result = torch.empty_like(values)
    kernel = _kernel("masked")

    def part(first: int, count: int) -> None:
        kernel(
            _at(values), values.element_size(), _at(bits), _int64(values.numel()), _int64(first),
            _int64(count), _at(result),
        )  # fmt: skip

    _in_threads(part, len(bits), values.numel())
    return result


def _kernel(name: str) -> Callable[..., Any]:
    functions = library()
    assert functions is not None, "callers ask for the library before"
    return cast("Callable[..., Any]", getattr(functions, name))


_BOOL = 3
_int64, _uint64 = ctypes.c_int64, ctypes.c_uint64


def _at(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _in_threads(part: Callable[[int, int], None], groups: int, elements: int) -> None:
    """Call `part(first, count)` for all groups, on as many threads as torch may use.

    A call into the library leaves the interpreter to other threads.
    """
    threads = min(torch.get_num_threads(), elements // _WORTH_A_THREAD)
    if threads < 2:
        part(0, groups)
        return
    share = -(-groups // threads)
    firsts = range(share, groups, share)
    others = [_pool().submit(part, first, min(share, groups - first)) for first in firsts]
    part(0, share)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="halfstep-packing")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_pool.cache_clear)
    return pool
