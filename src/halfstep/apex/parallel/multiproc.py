"""`python -m apex.parallel.multiproc script.py ...`: one process for each GPU of this machine.

Process I of N gets the arguments `--world-size N --rank I`, with I from 0. All processes except the
first write their stdout to `GPU_I.log`.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import torch


def main(argv: list[str]) -> int:
    """Run a script once for each GPU, or once without a GPU.

    Args:
        argv: The script and its arguments; `--world-size` in them overrides the number of GPUs.

    Returns:
        The exit code of the first process that failed, or 0.
    """
    arguments = list(argv)
    if "--world-size" in arguments:
        world_size = int(arguments[arguments.index("--world-size") + 1])
    else:
        world_size = max(1, torch.cuda.device_count())
        arguments += ["--world-size", str(world_size)]
    if "--rank" not in arguments:
        arguments += ["--rank", "0"]
    place = arguments.index("--rank") + 1
    with ExitStack() as logs:
        workers = []
        for rank in range(world_size):
            arguments[place] = str(rank)
            log = logs.enter_context(Path(f"GPU_{rank}.log").open("w")) if rank else None
            # The script is the caller's own, as with torchrun.
            workers.append(subprocess.Popen([sys.executable, *arguments], stdout=log))  # noqa: S603
        codes = [worker.wait() for worker in workers]
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
