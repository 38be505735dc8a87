"""Starts several processes of one run on this machine, by torchrun's own agent.

The agent watches the processes, ends all when one fails, and starts them again as often as it may.
How a run ended that is not to be started again (bad input, a signal, a bad result) is left in a
file, so that the code that halfstep exits with is the run's own. Each process is in a session of
its own, which no signal to the launcher's group reaches: it sees to it itself that it does not
outlive the launcher.
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
"""The variable that tells `halfstep train` the process id of what it must not outlive."""
_FAILED = 1
_BY_SIGNAL = 128
_LONGEST_SAVE_S = "120"


def launch(arguments: Sequence[str], *, processes: int, max_restarts: int) -> int:
    """Run `halfstep ARGUMENTS` in several processes, restarted so often; return the exit code."""
    # Importing it is slow.
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # It would log, in many lines, what the processes say in one; each module by itself.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    threads = max(1, (os.cpu_count() or 1) // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    # A process that is asked to stop writes a checkpoint first.
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
    """Let this process end with the one that launched it, if one did that wants it so."""
    # Not for what this process starts in turn.
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        end_with(int(launcher))


def _killed(rank: int, first: ProcessFailure) -> str:
    """Say that the first process that failed was killed, as it had no time to say it itself."""
    if first.exitcode >= 0:
        return ""
    return f"rank {rank} (process {first.pid}) was killed by {first.signal_name()}\n"


def leave_outcome(code: int) -> None:
    """Tell the process that launched this one that the run is over, and how."""
    with suppress(OSError, KeyError):
        Path(os.environ[_OUTCOME]).write_text(str(code), encoding="utf-8")


def is_over() -> bool:
    """Tell whether the run ended before this process was started once more."""
    return Path(os.environ[_OUTCOME]).exists() if _OUTCOME in os.environ else False
