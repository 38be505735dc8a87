"""Processes that start warm: forked from one that has imported what training takes.

A program that imports torch, timm and the rest anew spends seconds of a processor on it. These are
processes of their own all the same, to be killed or signalled as any other; the one that they are
forked from has computed nothing, and ends with the tests.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import sys
import tempfile
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "halfstep.cli",
        "halfstep.train.loop.loop",
        "halfstep.train.after.evaluate",
        "halfstep.compare.plan.plan",
        "halfstep.compare.output.tables",
        "sklearn.datasets",
        "sklearn.model_selection",
        "torch.distributed.checkpoint.state_dict_loader",
        "torch.distributed.checkpoint.state_dict_saver",
        "torch.distributed.fsdp",
        "torch.distributed.launcher.api",
        "torch.utils.tensorboard.writer",
    ]
)

# Wait for it at the end, so that the time that the tests take includes its own.
atexit.register(forkserver._forkserver._stop)


class Ended(NamedTuple):
    """How a process ended.

    Attributes:
        code: Its exit code; of one that a signal killed, less its number.
        out: What it wrote to stdout.
        err: What it wrote to stderr.
    """

    code: int
    out: str
    err: str


class Warm:
    """A process that runs a function, in this working directory and environment.

    Args:
        function: Found by name in its module; an integer that it returns is the exit code.
        arguments: What it is called with.
        environment: Variables besides those of this process.
        session: Whether it is the first of a session of its own.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        session: bool = False,
    ) -> None:
        self._said = Path(tempfile.mkdtemp(prefix="warm-"))
        variables = {**os.environ, **(environment or {})}
        given = (function, arguments, variables, str(self._said), session)
        self._process = CONTEXT.Process(target=_run, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """Send SIGKILL, and wait."""
        self._process.kill()
        self._process.join()

    def wait(self, timeout: float | None = None) -> Ended:
        """Wait for it, some seconds at most; it is killed then."""
        self._process.join(timeout)
        if self._process.is_alive():
            self.kill()
        assert self._process.exitcode is not None
        files = (self._said / "out", self._said / "err")  # none of a process killed at its start
        out, err = (file.read_text() if file.exists() else "" for file in files)
        return Ended(self._process.exitcode, out, err)


def run(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Ended:
    """Run a function in a warm process, and wait for it."""
    return Warm(function, *arguments, **settings).wait()


def started() -> None:
    """Begin as a process of one thread, whose collections leave out what was imported before it.

    There are a million objects of torch and the rest, and every run collects once.
    """
    import torch

    gc.freeze()
    torch.set_num_threads(1)


def halfstep(*arguments: object) -> int:
    """Be the command `halfstep`: `warm.run(warm.halfstep, "train", "digits")`."""
    from halfstep.cli import main

    return main([str(each) for each in arguments])


def program(code: str, *arguments: str) -> None:
    """Be `python -c CODE ARGUMENTS`: `warm.run(warm.program, "print(1)")`."""
    sys.argv[:] = ["-c", *arguments]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})


def interpreted(code: str, *arguments: str) -> None:
    """Be `python -c CODE ARGUMENTS` with Triton's interpreter in place of its compiler.

    Triton reads the variable when it is imported, for its own functions, and torch has imported it.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    for name in list(sys.modules):
        if name.split(".")[0] == "triton" and not name.startswith("triton._C"):
            del sys.modules[name]
    program(code, *arguments)


def _run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    variables: dict[str, str],
    said: str,
    session: bool,
) -> None:
    from halfstep.compare.cells import warm

    warm._IS_FORKED = True  # from a process that has only imported, so that it may fork in turn
    for number, name in ((1, "out"), (2, "err")):
        with (Path(said) / name).open("wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(variables)
    if session:
        os.setsid()
    started()
    sys.exit(function(*arguments))
