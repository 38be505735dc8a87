"""Starts programs quickly: forks them from a server process that has imported their modules.

The import of torch, timm and other modules takes three seconds of a core. For short programs, such
as the cells of a comparison, this is a large part of the time. The server has only imported: it has
no thread and no CUDA context, and it has drawn no random numbers.

A forked program is a normal process. The server forks an intermediate process, which forks the
program and ends at once. The kernel then makes the program a child of the process that requested
it, as if `subprocess.Popen` had started the program. So the requesting process can wait for the
program, gets its exit code or the signal that killed it, and can be the process with which the
program must end. If the server ends, the programs continue. On systems other than Linux, there is
no server.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

OF_TRAINING = (
    "halfstep.train.loop.loop",
    "sklearn.datasets",
    "sklearn.model_selection",
    "timm",
    "torch.utils.tensorboard.writer",
    "torchvision",
)
"""The modules that `halfstep train` imports at some point."""

_PR_SET_CHILD_SUBREAPER = 36
"""An option of Linux's prctl: this process becomes the parent of its orphaned descendants."""
_READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "ATEN_", "TORCH", "CUDA_", "PYTHON")
_THREADS = "OMP_NUM_THREADS"
"""Read at import, but a forked program can be told its value: torch sets the threads of OpenMP."""
_LONGEST_REQUEST = 2**16
_LONGEST_WAIT_S = 120.0
"""Seconds to wait for an answer of the server, whose imports are slow on a busy machine."""
_IS_FORKED = False
"""Whether a server has forked this process."""


class Process(Protocol):
    """A started process: the methods that `subprocess.Popen` and `Forked` have in common."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code (-N if signal N killed the process); None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise subprocess.TimeoutExpired after `timeout` seconds."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal if the process still runs."""

    def kill(self) -> None:
        """Send SIGKILL if the process still runs."""


class Forked:
    """A child of this process that a server forked.

    Args:
        pid: The process id.
        command: The program and arguments.
    """

    def __init__(self, pid: int, command: Sequence[str]) -> None:
        self.pid = pid
        self._command = command
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code (-N if signal N killed the process); None while it runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise subprocess.TimeoutExpired after `timeout` seconds."""
        if self.poll() is None:
            ending = os.pidfd_open(self.pid)
            try:
                select.select([ending], [], [], timeout)
            finally:
                os.close(ending)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(list(self._command), timeout or 0.0)
        return code

    def send_signal(self, sig: int, /) -> None:
        """Send a signal if the process still runs."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL if the process still runs."""
        self.send_signal(signal.SIGKILL)


class Server:
    """Sends requests to the process that forks programs; created by `server`.

    Args:
        asking: This process's end of the socket.
        pid: The process id of the server.
    """

    def __init__(self, asking: socket.socket, pid: int) -> None:
        self._asking = asking
        self._asking.settimeout(_LONGEST_WAIT_S)
        self._pid = pid

    def start(
        self,
        command: Sequence[str],
        *,
        outputs: tuple[int, int],
        environment: Mapping[str, str],
        keep_open: Sequence[int] = (),
    ) -> Forked | None:
        """Start `python -m MODULE ...` with an empty stdin, in the current working directory.

        Args:
            command: The program and arguments, as for `subprocess.Popen`.
            outputs: File descriptors for stdout and stderr.
            environment: Environment variables in addition to those of this process.
            keep_open: File descriptors that stay open in the program, under other numbers.

        Returns:
            The process. None if the server cannot fork it, and the caller must start a new process:
            because `command` is another program, because libraries read one of the variables at
            their import, or because the server was killed.
        """
        threads = environment.get(_THREADS)
        read_early = any(
            name.startswith(_READ_AT_IMPORT) for name in environment if name != _THREADS
        )
        if list(command[:2]) != [sys.executable, "-m"] or read_early:
            return None
        variables = {**os.environ, **environment}
        asked = {
            "command": list(command[2:]),
            "environment": variables,
            "in": str(Path.cwd()),
            "threads": None if threads is None else int(threads),
        }
        request = json.dumps(asked).encode()
        if len(request) > _LONGEST_REQUEST:
            return None
        try:
            with _adopting():
                socket.send_fds(self._asking, [request], [*outputs, *keep_open])
                answer = self._asking.recv(16)
        except OSError:
            self.close()
            return None
        return Forked(int(answer), command) if answer and int(answer) else None

    def close(self) -> None:
        """End the server; the programs that it forked continue."""
        self._asking.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)  # not SIGTERM: it may still import
            os.waitpid(self._pid, 0)
            self._pid = 0


def is_untouched() -> bool:
    """Tell whether this process has not used torch yet; only the server may have imported torch."""
    return _IS_FORKED or "torch" not in sys.modules


@contextmanager
def server(modules: Sequence[str] = OF_TRAINING) -> Iterator[Server | None]:
    """Fork a server from this process and keep it during the block; yield None if that fails.

    Call this only in a process that has imported modules and done nothing else. Every program
    inherits the state of the process. Its threads do not exist in the programs, but locks that they
    hold stay locked.

    Args:
        modules: Modules that the server imports, while this process continues.
    """
    if sys.platform != "linux":
        yield None
        return
    asking, answering = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        asking.close()
        _serve(answering, modules)
    answering.close()
    if pid < 0:
        asking.close()
        yield None
        return
    running = Server(asking, pid)
    try:
        yield running
    finally:
        running.close()


@contextmanager
def _adopting() -> Iterator[None]:
    """Make this process the parent of its orphaned descendants while the block runs."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no child subreaper")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _serve(answering: socket.socket, modules: Sequence[str]) -> NoReturn:
    """Import the modules, then fork one program per request until the requesting process ends."""
    _forget_handlers()
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    with suppress(OSError):
        while True:
            request, handed, _, _ = socket.recv_fds(answering, _LONGEST_REQUEST, 16)
            if not request:
                break
            pid, going = _fork_away(json.loads(request), handed, answering, ignored)
            for descriptor in handed:
                os.close(descriptor)
            answering.send(str(pid).encode())
            with suppress(BrokenPipeError):  # the program was killed before it could read
                os.write(going, b"go")
            os.close(going)
    os._exit(0)


def _fork_away(
    asked: dict[str, Any],
    handed: list[int],
    answering: socket.socket,
    interrupt: Any,
) -> tuple[int, int]:
    """Fork a program that becomes a child of the server's parent.

    Returns:
        The process id of the program, or 0 if the fork failed; and the file descriptor of a pipe.
        The program begins when something is written to the pipe.
    """
    output, saying = os.pipe()
    go, going = os.pipe()
    try:
        between = os.fork()
    except OSError:
        between = -1
    if between == 0:
        try:
            program = os.fork()
        except OSError:
            os._exit(1)
        if program:
            os.write(saying, str(program).encode())
            os._exit(0)
        answering.close()
        for descriptor in (output, saying, going):
            os.close(descriptor)
        if not os.read(go, 2):  # the server was killed before it sent the process id
            os._exit(1)
        os.close(go)
        signal.signal(signal.SIGINT, interrupt)
        _run(asked, handed)
    for descriptor in (saying, go):
        os.close(descriptor)
    if between > 0:
        os.waitpid(between, 0)
    pid = int(os.read(output, 16) or 0)
    os.close(output)
    return pid, going


def _run(asked: dict[str, Any], handed: Sequence[int]) -> NoReturn:
    """Run as `python -m MODULE ...`, and end the process."""
    global _IS_FORKED  # noqa: PLW0603  # it is of the process
    _IS_FORKED = True
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, *handed[:2])):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["in"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    if asked["threads"] is not None and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(asked["threads"])
    if "numpy.random" in sys.modules:
        # Otherwise all programs would draw the same numbers. Python's `random` needs no new seed,
        # because it seeds itself again after a fork.
        sys.modules["numpy.random"].seed()
    module, *arguments = asked["command"]
    sys.argv = [module, *arguments]
    if not sys.flags.safe_path:
        sys.path.insert(0, asked["in"])
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as done:
        code = _code_of(done)
    except BaseException:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        _end(code)


def _code_of(done: SystemExit) -> int:
    """Return the exit code of sys.exit(...), and print its message if any, as Python does."""
    if done.code is None or isinstance(done.code, int):
        return (done.code or 0) & 0xFF
    sys.stderr.write(f"{done.code}\n")
    return 1


def _end(code: int) -> NoReturn:
    """End the process as Python does, but without the slow deletion of all modules."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # there is no other way
        atexit._run_exitfuncs()  # noqa: SLF001  # the same; multiprocessing calls both
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def _forget_handlers() -> None:
    """Reset all signal handlers to those of a new Python process."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
