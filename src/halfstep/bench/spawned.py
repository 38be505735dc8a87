"""Starts `halfstep` in several processes with `torch.multiprocessing.spawn`, for timing.

    python -m halfstep.bench.spawned 2 train digits

It sets the environment variables that torchrun would set for each process.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from typing import TYPE_CHECKING

from torch.multiprocessing.spawn import spawn

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> None:
    """Start the processes, and wait for them.

    Args:
        arguments: The number of processes, then the arguments of `halfstep`.
    """
    size, *rest = arguments
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    spawn(_work, (int(size), port, rest), nprocs=int(size))


def _work(rank: int, size: int, port: int, arguments: Sequence[str]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="localhost",
        MASTER_PORT=str(port),
    )
    sys.argv = ["halfstep", *arguments]
    runpy.run_module("halfstep", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
