"""Starts several processes of one run on this machine, with torchrun's agent.

The agent watches the processes, ends all of them if one fails, and restarts them up to
`max_restarts` times. If a run must not be restarted (invalid input, a signal, a bad result), its
process writes its exit code to a file, and the launcher exits with that code. Each process has its
own session, which signals to the launcher's process group do not reach. So each process itself
makes sure that it does not outlive the launcher.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.train.processes.orphans import end_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

_OUTCOME = "HALFSTEP_OUTCOME"
LAUNCHER = "HALFSTEP_LAUNCHER"
"""Environment variable with the id of the process that `halfstep train` must not outlive."""
_FAILED = 1
_BY_SIGNAL = 128
_LONGEST_SAVE_S = "120"


def launch(arguments: Sequence[str], *, processes: int, max_restarts: int) -> int:
    """Run `halfstep ARGUMENTS` in several processes; return the exit code.

    If a process fails, all are restarted, at most `max_restarts` times.
    """
    # Imported here, because the import is slow.
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Each module of the agent would log, in many lines, errors that the processes report in one.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    threads = max(1, (os.cpu_count() or 1) // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # Enough time for a stopped process to write a checkpoint.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _LONGEST_SAVE_S)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=max_restarts,
        signals_to_handle="SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
    )
    with tempfile.TemporaryDirectory() as folder:
        outcome = Path(folder) / "outcome"
        os.environ |= {_OUTCOME: str(outcome), LAUNCHER: str(os.getpid())}
        code, killed = 0, ""
        try:
            elastic_launch(config, sys.executable)("-m", "halfstep", *arguments)
        except ChildFailedError as failed:
            code, killed = _FAILED, _killed(*failed.get_first_failure())
        except SignalException as stopped:
            code = _BY_SIGNAL + stopped.sigval
        finally:
            del os.environ[LAUNCHER]
        if outcome.exists():
            return int(outcome.read_text(encoding="utf-8"))
        sys.stderr.write(killed)
        return code


def end_with_launcher() -> None:
    """Have this process killed when its launcher ends, if a launcher set `LAUNCHER`."""
    # Removed, so that the children of this process do not inherit the variable.
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        end_with(int(launcher))


def _killed(rank: int, first: ProcessFailure) -> str:
    """Return a line if a signal killed the first failed process, which could not report it itself.

    Return "" if the process exited by itself.
    """
    if first.exitcode >= 0:
        return ""
    return f"rank {rank} (process {first.pid}) was killed by {first.signal_name()}\n"


def leave_outcome(code: int) -> None:
    """Write the run's exit code to the launcher's file, which marks the run as over."""
    with suppress(OSError, KeyError):
        Path(os.environ[_OUTCOME]).write_text(str(code), encoding="utf-8")


def is_over() -> bool:
    """Tell whether the run was already over when this process was restarted."""
    return Path(os.environ[_OUTCOME]).exists() if _OUTCOME in os.environ else False
