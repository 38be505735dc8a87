"""Compiles C and C++ kernels for this processor when they are first needed.

This needs only a compiler, which `torch.compile` needs on a CPU as well. The libraries are stored
in the user's cache. For machines without a compiler, every kernel has a counterpart in plain
PyTorch with the same bits.
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
import time
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
_OF_PYTORCH = Path(torch.__file__).parent
_FLAGS_OF_PYTORCH = (
    "-std=c++20", f"-I{_OF_PYTORCH}/include", f"-I{_OF_PYTORCH}/include/torch/csrc/api/include",
    f"-L{_OF_PYTORCH}/lib", f"-Wl,-rpath,{_OF_PYTORCH}/lib", "-ltorch_cpu", "-lc10",
)  # fmt: skip
"""Further flags for a C++ file, which uses PyTorch's headers and libraries."""
OF_THIS_PROCESSOR = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ())
"""Sets of flags for this processor. Not every compiler knows them; the first set that works is
used."""

REMEMBERED = 24 * 60 * 60
"""Seconds for which no process repeats a failed compilation, because it takes long."""

LONGEST = 120
"""Seconds after which a compiler is stopped and counts as failed."""

WORTH_A_THREAD = 2**17
"""Number of elements per thread, below which another thread costs more time than it saves."""


def load(source: Path, *headers: Path, otherwise: str) -> ctypes.CDLL | None:
    """Compile and load a file; if this fails, log a line and return None.

    Args:
        source: A C file, or a C++ file that uses PyTorch.
        headers: The files in the same folder that `source` includes.
        otherwise: For the log line: how halfstep works without the file.
    """
    try:
        compiler = _compiler("c++" if _uses_pytorch(source) else "cc")
        if not compiler:
            _logger.info("no compiler for %s: %s", source.name, otherwise)
            return None
        return ctypes.CDLL(str(_build(compiler, source, headers)))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        # RuntimeError: there is no home directory; ValueError: CC contains an unclosed quotation
        _logger.info("%s: %s", otherwise, error)
        return None


def at(tensor: torch.Tensor) -> ctypes.c_void_p:
    """Return the address of the first element of a tensor on the CPU."""
    return ctypes.c_void_p(tensor.data_ptr())


def in_threads(part: Callable[[int, int], None], pieces: int, elements: int) -> None:
    """Call `part(first, count)` for consecutive ranges of pieces, on several threads if this pays.

    The number of threads is at most `torch.get_num_threads()`. A call of a C function releases the
    interpreter lock, so the threads run in parallel.

    Args:
        part: Processes `count` pieces from the index `first` on.
        pieces: The number of pieces in all.
        elements: The number of elements in all, which determines how many threads pay.
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


_COMPILERS = {"cc": ("CC", "gcc"), "c++": ("CXX", "g++")}


def _compiler(name: str) -> list[str]:
    """Return the command of a compiler, from CC or CXX if they are set; empty if there is none."""
    variable, other_name = _COMPILERS[name]
    found = shutil.which(name) or shutil.which(other_name)
    return shlex.split(os.environ.get(variable, "")) or ([found] if found else [])


def _uses_pytorch(source: Path) -> bool:
    return source.suffix == ".cpp"


def _build(compiler: list[str], source: Path, headers: tuple[Path, ...]) -> Path:
    text = b"".join(each.read_bytes() for each in (source, *headers))
    of_pytorch = (*_FLAGS_OF_PYTORCH, torch.__version__) if _uses_pytorch(source) else ()
    flags = *FLAGS, *chain(*OF_THIS_PROCESSOR), *of_pytorch
    made_of = "\n".join((*compiler, *flags, platform.machine(), _processor())).encode() + text
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halfstep"
    kept.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid"):
        status = kept.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{kept} can be written by others; chmod it to 700")
    path = kept / f"{source.stem}-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    failed = path.with_suffix(".failed")
    if failed.exists() and time.time() - failed.stat().st_mtime < REMEMBERED:
        raise OSError(f"the compiler failed within the last day; to try again, remove {failed}")
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=kept) as workplace:
            built = Path(workplace) / path.name
            try:
                _compile(compiler, source, built)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                failed.write_bytes(error.stderr or b"")
                raise
            built.replace(path)
    return path


def _compile(compiler: list[str], source: Path, to: Path) -> None:
    """Compile a file with the first set of `OF_THIS_PROCESSOR` that the compiler accepts.

    Raises:
        SubprocessError: If the compiler fails even without these flags, or takes too long.
        OSError: If there is no such compiler.
    """
    of_pytorch = _FLAGS_OF_PYTORCH if _uses_pytorch(source) else ()
    for flags in OF_THIS_PROCESSOR:
        command = [*compiler, *FLAGS, *flags, str(source), "-o", str(to), *of_pytorch]
        done = subprocess.run(  # noqa: S603  # the compiler of this machine, our own source
            command, check=not flags, capture_output=True, timeout=LONGEST
        )
        if done.returncode == 0:
            return


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
