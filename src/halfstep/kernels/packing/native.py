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
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from halfstep.kernels.packing.reference import MASK_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
"""What is packed, as `packing.c` calls it."""

_SOURCE = Path(__file__).with_name("packing.c")
_FLAGS = (
    "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-shared", "-fPIC",
)  # fmt: skip
_WORTH_A_THREAD = 2**17
"""Elements below which starting a second thread costs more than it saves."""


@cache
def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None where they cannot be had."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        _logger.info("no C compiler: activations are packed by plain PyTorch, which is slow")
        return None
    try:
        path = _build(compiler)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: no home
        _logger.info("activations are packed by plain PyTorch, which is slow: %s", error)
        return None


def _build(compiler: str) -> Path:
    source = _SOURCE.read_bytes()
    made_of = "\n".join((compiler, *_FLAGS, platform.machine(), _processor())).encode() + source
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
            subprocess.run(  # noqa: S603  # the compiler of this machine, our own source
                [compiler, *_FLAGS, str(_SOURCE), "-o", str(built)],
                check=True,
                capture_output=True,
                timeout=120,
            )
            built.replace(path)
    return path


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def pack(
    functions: ctypes.CDLL,
    flat: torch.Tensor,
    bits: int,
    group: int,
    seed: int,
    stream: int,
    counter: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do what `reference.pack` does, to a contiguous tensor on the CPU."""
    groups = -(-flat.numel() // group)
    codes = torch.empty(groups, group * bits // 8, dtype=torch.uint8)
    low = torch.empty(groups, dtype=torch.bfloat16)
    step = torch.empty_like(low)

    def part(first: int, count: int) -> None:
        functions.pack(
            _at(flat), DTYPES[flat.dtype], _int64(flat.numel()), _int64(first), _int64(count),
            group, bits, ctypes.c_uint64(seed), ctypes.c_uint32(stream), ctypes.c_uint64(counter),
            _at(codes), _at(low), _at(step),
        )  # fmt: skip

    _in_threads(part, groups, flat.numel())
    return codes, low, step


def unpack(
    functions: ctypes.CDLL,
    codes: torch.Tensor,
    low: torch.Tensor,
    step: torch.Tensor,
    bits: int,
    group: int,
    elements: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Do what `reference.unpack` does, on the CPU."""
    flat = torch.empty(elements, dtype=dtype)

    def part(first: int, count: int) -> None:
        functions.unpack(
            _at(codes), _at(low), _at(step), DTYPES[dtype], _int64(elements), _int64(first),
            _int64(count), group, bits, _at(flat),
        )  # fmt: skip

    _in_threads(part, len(low), elements)
    return flat


def mask(functions: ctypes.CDLL, values: torch.Tensor) -> torch.Tensor:
    """Do what `reference.mask` does, to a contiguous tensor on the CPU."""
    groups = -(-values.numel() // MASK_GROUP)
    bits = torch.empty(groups, MASK_GROUP // 8, dtype=torch.uint8)
    dtype = _BOOL if values.dtype == torch.bool else DTYPES[values.dtype]

    def part(first: int, count: int) -> None:
        functions.mask(
            _at(values), dtype, _int64(values.numel()), _int64(first), _int64(count), _at(bits)
        )

    _in_threads(part, groups, values.numel())
    return bits


def masked(functions: ctypes.CDLL, values: torch.Tensor, bits: torch.Tensor) -> torch.Tensor:
    """Do what `reference.masked` does, to a contiguous tensor on the CPU."""
    result = torch.empty_like(values)

    def part(first: int, count: int) -> None:
        functions.masked(
            _at(values), values.element_size(), _at(bits), _int64(values.numel()), _int64(first),
            _int64(count), _at(result),
        )  # fmt: skip

    _in_threads(part, len(bits), values.numel())
    return result


_BOOL = 3
_int64 = ctypes.c_int64


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
