"""Programs that start warm: forked from a process that has imported what they take.

Importing torch, timm and the rest costs three seconds of a core, over and over where programs are
short, as the cells of a comparison are. The process that they are forked from, the server, has
imported and computed nothing: it has no thread, no CUDA context and no random numbers drawn.

A program is a process of its own all the same. It is forked by a process that ends at once, and so
becomes the child of the one that asked for it, as one that `subprocess.Popen` started: that one
waits for it, gets its exit code and the signal that killed it, and may be what it must not outlive.
What becomes of the server reaches no program. Linux only; elsewhere there is no server.
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
"""Modules that `halfstep train` imports, sooner or later."""

_PR_SET_CHILD_SUBREAPER = 36
"""Of Linux's prctl: become the parent of processes below this one whose own parent has ended."""
_READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "ONEDNN_", "ATEN_", "TORCH", "CUDA_", "PYTHON")
_LONGEST_REQUEST = 2**16
_LONGEST_WAIT_S = 120.0
"""For imports on a machine with much else to do."""
_IS_FORKED = False
"""Whether this process is a program that a server has forked."""


class Process(Protocol):
    """A process that was started: what `subprocess.Popen` and `Forked` have in common."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal that killed it; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises subprocess.TimeoutExpired after so many seconds."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal if it has not ended."""

    def kill(self) -> None:
        """Send SIGKILL if it has not ended."""


class Forked:
    """A child of this process that a server forked.

    Args:
        pid: Its process id.
        command: What it runs.
    """

    def __init__(self, pid: int, command: Sequence[str]) -> None:
        self.pid = pid
        self._command = command
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal that killed it; None while it runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises subprocess.TimeoutExpired after so many seconds."""
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
        """Send a signal if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL if it has not ended."""
        self.send_signal(signal.SIGKILL)


class Server:
    """A process that forks programs; made by `server`.

    Args:
        asking: The end of the socket that requests go into.
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
        """Start `python -m MODULE ...` with nothing on stdin, in this working directory.

        Args:
            command: As for `subprocess.Popen`.
            outputs: File descriptors of stdout and stderr.
            environment: Variables besides those of this process.
            keep_open: File descriptors that stay open in the program, with other numbers.

        Returns:
            The process; None if it cannot be forked and is to be started as any other: another
            program, variables that libraries read while they are imported, a server that has been
            killed.
        """
        read_early = any(name.startswith(_READ_AT_IMPORT) for name in environment)
        if list(command[:2]) != [sys.executable, "-m"] or read_early:
            return None
        variables = {**os.environ, **environment}
        asked = {"command": list(command[2:]), "environment": variables, "in": str(Path.cwd())}
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
        """End the server; programs go on."""
        self._asking.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)  # it may be importing, which no one needs then
            os.waitpid(self._pid, 0)
            self._pid = 0


def is_untouched() -> bool:
    """Tell whether this process has done nothing with torch yet, but for importing it here."""
    return _IS_FORKED or "torch" not in sys.modules


@contextmanager
def server(modules: Sequence[str] = OF_TRAINING) -> Iterator[Server | None]:
    """Fork a server of this process, for the block; None where that cannot be.

    To be called by a process that has imported modules and done nothing else: what it has done,
    every program would have done, and its threads would be missing in them with locks held.

    Args:
        modules: What the server imports besides, while this process goes on.
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
    """Let this process be the parent of processes below it whose own parent ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no child subreaper")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _serve(answering: socket.socket, modules: Sequence[str]) -> NoReturn:
    """Import, and fork a program a request, until the one who asks is gone."""
    _forget_handlers()
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is not for it
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
            for each in handed:
                os.close(each)
            answering.send(str(pid).encode())
            with suppress(BrokenPipeError):  # killed before its first line
                os.write(going, b"go")
            os.close(going)
    os._exit(0)


def _fork_away(
    asked: dict[str, Any],
    handed: list[int],
    answering: socket.socket,
    interrupt: Any,
) -> tuple[int, int]:
    """Fork a program that is the child of the server's parent.

    Returns:
        Its process id, 0 if there is none left, and where to write when it may begin.
    """
    said, saying = os.pipe()
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
        for each in (said, saying, going):
            os.close(each)
        if not os.read(go, 2):  # no one knows of it: the server was killed
            os._exit(1)
        os.close(go)
        signal.signal(signal.SIGINT, interrupt)
        _run(asked, handed)
    for each in (saying, go):
        os.close(each)
    if between > 0:
        os.waitpid(between, 0)
    pid = int(os.read(said, 16) or 0)
    os.close(said)
    return pid, going


def _run(asked: dict[str, Any], handed: Sequence[int]) -> NoReturn:
    """Be `python -m MODULE ...` from here to the end of the process."""
    global _IS_FORKED  # noqa: PLW0603  # it is of the process
    _IS_FORKED = True
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, *handed[:2])):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["in"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    if "numpy.random" in sys.modules:
        # Else all programs would draw the same numbers; Python seeds its own again after a fork.
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
    """Return the exit code that Python makes of sys.exit(...)."""
    if done.code is None or isinstance(done.code, int):
        return (done.code or 0) & 0xFF
    sys.stderr.write(f"{done.code}\n")
    return 1


def _end(code: int) -> NoReturn:
    """End as Python ends, but for the modules, which the end of the process frees quicker."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # there is no other way
        atexit._run_exitfuncs()  # noqa: SLF001  # the same; multiprocessing calls both
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def _forget_handlers() -> None:
    """Take signals as a process does that has just started."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
