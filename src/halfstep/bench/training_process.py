"""Runs `halfstep train` as a separate process, which ends when the measurement ends."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.files import write_atomically
from halfstep.train.config.files import load, resolved
from halfstep.train.processes.ending import end, reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from halfstep.train.config import Config

HALFSTEP = (sys.executable, "-m", "halfstep")

_FEW = 8


def write_config(config: Config, folder: Path, *overrides: str) -> Path:
    """Write a config for timed runs: without tracking, probes, and most of the validation data.

    Args:
        config: The config to train.
        folder: The folder for the file.
        overrides: Further overrides, "key=value".

    Returns:
        The path of the file.
    """
    file = folder / "config.yaml"
    write_atomically(file, resolved(config))
    # A schedule with a warm-up may require more epochs than are timed.
    timed = ["tracking=[]", "probes=false", "early_stopping=null", "schedule={name: constant}"]
    if hasattr(config.data.val, "limit"):
        timed.append(f"data.val.limit={_FEW}")
    write_atomically(file, resolved(load(str(file), [*timed, *overrides])))
    return file


@contextmanager
def training(
    command: Sequence[str], logs: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, and make sure that it has ended when the block ends.

    Args:
        command: The program and its arguments.
        logs: The folder for its standard output and standard error.
        environment: Environment variables in addition to those of this process.

    Raises:
        UserError: If the command fails; contains the end of its standard error.
    """
    errors = logs / "stderr.log"
    with (logs / "stdout.log").open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen(  # noqa: S603  # this program, or one of torch's
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **environment},
        )
    try:
        yield process
        code = process.wait()
    except BaseException:
        end([process])
        raise
    if code:
        raise UserError(f"a timed run failed: {reason(code, errors)}")
