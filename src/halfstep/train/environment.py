"""Picks the device of a run, and describes its machine and the versions of its packages."""

from __future__ import annotations

import os
import platform
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from halfstep import caller
from halfstep.errors import UserError
from halfstep.kernels import accelerators
from halfstep.versions import version

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES = ("halfstep", "torch", "torchvision", "timm")
_PREFIXES = ("OMP_", "MKL_", "KMP_", "CUDA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "SLURM_N")
_OF_THE_PROCESS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def pick_device(name: str) -> torch.device:
    """Return the requested device; "auto" is the first GPU, or the CPU if there is no GPU."""
    gpus = accelerators.present()
    here = ["cpu", *map(str, gpus)]
    if name == "auto":
        name = gpus[0].type if gpus else "cpu"
    device = torch.device(name)
    if device.type != "cpu" and torch.device(device.type, device.index or 0) not in gpus:
        raise UserError(
            f"device is {name!r}, which torch {torch.__version__} does not see on this machine; "
            f"allowed: {', '.join(here)}; write {caller.setting(device=here[-1])}"
        )
    return device


@contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """Use `count` CPU threads in the block, unless it is None or OMP_NUM_THREADS is set."""
    before = torch.get_num_threads()
    if count is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe(device: torch.device) -> dict[str, Any]:
    """Return versions, processor, threads and device as plain data, for `environment.json`."""
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
        "platform": platform.platform(),
        "cpu": _cpu(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": accelerators.name_of(device) or _cpu(),
    }


def report() -> dict[str, Any]:
    """Return the facts for a bug report.

    They are those of `describe` and of torch's `collect_env`, the available backends of
    torch.distributed, and the environment variables that affect training.
    """
    from torch import distributed
    from torch.utils.collect_env import get_env_info

    return {
        **describe(pick_device("auto")),
        **get_env_info()._asdict(),  # noqa: SLF001  (public, of a named tuple)
        "backends": [
            name
            for name in ("gloo", "nccl", "xccl", "mpi")
            if distributed.is_available() and getattr(distributed, f"is_{name}_available")()
        ],
        "variables": [
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) or name in _OF_THE_PROCESS
        ],
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
