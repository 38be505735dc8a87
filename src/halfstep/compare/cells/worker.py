"""A process that trains one cell after the other: imports, CUDA and compiled models stay warm.

A server of `warm` cannot fork a process that uses a GPU. So the cells of a GPU, and those whose
model is compiled, run one after the other in a process that stays. It keeps the images and the
models, each re-initialised in place (see `halfstep.train.kept`), so that many seeds are read and
compiled once. A cell that dies takes the process with it, and the next cell gets a new one.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from halfstep.train import kept
from halfstep.train.processes.launch import LAUNCHER, end_with_launcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONGEST_REQUEST = 2**16


class Worker:
    """Runs programs `python -m MODULE ...` one at a time, in one process as long as it lives."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._asking: socket.socket | None = None
        self._environment: dict[str, str] = {}

    def start(
        self,
        command: Sequence[str],
        *,
        outputs: tuple[int, int],
        environment: Mapping[str, str],
        keep_open: Sequence[int] = (),
    ) -> Worked | None:
        """Start a program; the arguments are those of `warm.Server.start`.

        Returns:
            The program. None if it is not a Python module, so that the caller must start it.
        """
        if list(command[:2]) != [sys.executable, "-m"]:
            return None
        variables = {**os.environ, **environment}
        alive = self._process is not None and self._process.poll() is None
        if not alive or variables != self._environment:
            self.close()
            self._begin(variables, keep_open)
        assert self._process is not None
        assert self._asking is not None
        socket.send_fds(self._asking, [json.dumps(list(command[2:])).encode()], list(outputs))
        return Worked(self._process, self._asking)

    def close(self) -> None:
        """End the process, which must not be running a program."""
        if self._asking is not None:
            self._asking.close()
        if self._process is not None:
            try:
                self._process.wait(10.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = self._asking = None

    def _begin(self, variables: dict[str, str], keep_open: Sequence[int]) -> None:
        self._asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._environment = variables
        with answering:
            self._process = subprocess.Popen(  # noqa: S603  # our own command
                [sys.executable, "-m", __name__, str(answering.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(answering.fileno(), *keep_open),
                env=variables,
            )


class Worked:
    """A program in a worker's process; its methods are those of `subprocess.Popen`.

    Args:
        process: The process.
        answers: Where its exit code arrives.
    """

    def __init__(self, process: subprocess.Popen[bytes], answers: socket.socket) -> None:
        self.pid = process.pid
        self._process = process
        self._answers = answers
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code (-N if signal N killed the process); None while it runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise subprocess.TimeoutExpired after `timeout` seconds."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a cell", timeout or 0.0)
        return code

    def send_signal(self, sig: int, /) -> None:
        """Send a signal if the program still runs."""
        if self.poll() is None:
            self._process.send_signal(sig)

    def kill(self) -> None:
        """Send SIGKILL if the program still runs."""
        self.send_signal(signal.SIGKILL)

    def _wait(self, seconds: float | None) -> int | None:
        if self._code is None and select.select([self._answers], [], [], seconds)[0]:
            line = b""
            with suppress(OSError):
                line = self._answers.recv(16)
            self._code = int(line) if line else self._process.wait()
        return self._code


def serve(answering: socket.socket) -> None:
    """Run one program per request, until the process that asks has ended."""
    with kept.keeping():
        while True:
            request, handed, _, _ = socket.recv_fds(answering, _LONGEST_REQUEST, 2)
            if not request:
                return
            for number, file in enumerate(handed, 1):
                os.dup2(file, number)
                os.close(file)
            code = _run(*json.loads(request))
            if code:
                kept.forget()
            gc.collect()
            _give_back_gpu_memory()
            with suppress(BrokenPipeError):
                answering.send(str(code).encode())


def _run(module: str, *arguments: str) -> int:
    """Run as `python -m MODULE ...`, and return the exit code."""
    sys.argv = [module, *arguments]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as done:
        code = done.code if isinstance(done.code, int) else int(done.code is not None)
        if isinstance(done.code, str):
            sys.stderr.write(f"{done.code}\n")
    except Exception:  # noqa: BLE001  (as the interpreter does)
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    return code & 0xFF


def _give_back_gpu_memory() -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        from halfstep.kernels.accelerators import empty_cache  # imports torch

        empty_cache()


if __name__ == "__main__":
    os.environ.setdefault(LAUNCHER, str(os.getppid()))
    end_with_launcher()
    with socket.socket(fileno=int(sys.argv[1])) as mine, suppress(KeyboardInterrupt):
        serve(mine)
