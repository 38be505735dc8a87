"""What a bug report says about the machine: versions, devices, threads, and processes."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.distributed as dist

from halfstep.train.environment import describe, pick_device

_OPTIONAL = ("onnx", "onnxruntime", "triton", "wandb", "mlflow", "webdataset")
_PREFIXES = ("OMP_", "MKL_", "KMP_", "CUDA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "SLURM_N")
_OF_THE_PROCESS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def collect() -> dict[str, Any]:
    """Return it all as plain data, in the order in which it is read."""
    found = describe(pick_device("auto"))
    gpus = [
        f"{torch.cuda.get_device_name(index)} ({memory / 2**30:.0f} GiB)"
        for index in range(torch.cuda.device_count())
        for memory in [torch.cuda.get_device_properties(index).total_memory]
    ]
    return {
        **found,
        "torch": torch.__version__,  # with the build, which the package's version leaves out
        **{name: _version(name) for name in _OPTIONAL},
        "cores": os.cpu_count(),
        "gpus": gpus,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "backends": _backends(),
        "variables": [
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) or name in _OF_THE_PROCESS
        ],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _backends() -> list[str]:
    """Return what processes can talk by here."""
    if not dist.is_available():
        return []
    there = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available() and torch.cuda.is_available(),
        "mpi": dist.is_mpi_available(),
    }
    return [name for name, is_there in there.items() if is_there]
