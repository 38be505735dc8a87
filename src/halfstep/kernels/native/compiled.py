"""C kernels, compiled for this processor when they are first needed.

The C compiler that `torch.compile` needs on a CPU as well is all that it takes; the libraries are
kept in the user's cache. Whatever is computed so has a plain PyTorch counterpart of the same bits,
for machines without a compiler.
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
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)

FLAGS = (
    "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC",
)  # fmt: skip
OF_THIS_PROCESSOR = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
"""Flags for this processor, of which compilers know more or fewer; the first that work are used."""

WORTH_A_THREAD = 2**17
"""Elements below which starting a second thread costs more than it saves."""


def load(source: Path, *headers: Path, otherwise: str) -> ctypes.CDLL | None:
    """Return the functions of a C file; None where they cannot be had, and a line in the log.

    Args:
        source: The file.
        headers: What it includes from beside it.
        otherwise: What the line says is done instead.
    """
    try:
        compiler = _compiler()
        if not compiler:
            _logger.info("no C compiler: %s", otherwise)
            return None
        return ctypes.CDLL(str(_build(compiler, source, headers)))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        # RuntimeError: no home; ValueError: a quotation in CC that does not end
        _logger.info("%s: %s", otherwise, error)
        return None


def at(tensor: torch.Tensor) -> ctypes.c_void_p:
    """Return the address of the first element of a tensor on the CPU."""
    return ctypes.c_void_p(tensor.data_ptr())


def in_threads(part: Callable[[int, int], None], pieces: int, elements: int) -> None:
    """Call `part(first, count)` for all pieces, on as many threads as torch may use.

    A call into a library leaves the interpreter to other threads.
    """
    threads = min(torch.get_num_threads(), elements // WORTH_A_THREAD)
    if threads < 2:
        part(0, pieces)
        return
    share = -(-pieces // threads)
    firsts = range(share, pieces, share)
    others = [_pool().submit(part, first, min(share, pieces - first)) for first in firsts]
    part(0, share)
    for other in others:
        other.result()


@cache
def _pool() -> ThreadPoolExecutor:
    pool = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="halfstep-kernels")
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_pool.cache_clear)
    return pool


def _compiler() -> list[str]:
    """Return the command of the C compiler, which CC may give with arguments; empty without one."""
    found = shutil.which("cc") or shutil.which("gcc")
    return shlex.split(os.environ.get("CC", "")) or ([found] if found else [])


def _build(compiler: list[str], source: Path, headers: tuple[Path, ...]) -> Path:
    text = b"".join(each.read_bytes() for each in (source, *headers))
    flags = *FLAGS, *chain(*OF_THIS_PROCESSOR)
    made_of = "\n".join((*compiler, *flags, platform.machine(), _processor())).encode() + text
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfstep"
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        status = kept.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{kept} can be written by others; chmod it to 700")
    path = kept / f"{source.stem}-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=kept) as workplace:
            built = Path(workplace) / path.name
            _compile(compiler, source, built)
            built.replace(path)
    return path


def _compile(compiler: list[str], source: Path, to: Path) -> None:
    """Compile a C file with the first flags that the compiler knows.

    Raises:
        SubprocessError: If it cannot be compiled without any.
        OSError: If there is no such compiler.
    """
    for flags in OF_THIS_PROCESSOR:
        command = [*compiler, *FLAGS, *flags, str(source), "-o", str(to)]
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
