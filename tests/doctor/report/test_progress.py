"""A slow program under doctor is told how far it is, and nothing of its own output is lost."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import threading

import pytest

from halfstep.cli import main
from halfstep.doctor.report import progress
from halfstep.doctor.report.progress import Progress


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stream(io.TextIOWrapper):
    """A stream of a program on a pipe that may say that it is a terminal."""

    def __init__(self, file: int, *, terminal: bool) -> None:
        super().__init__(os.fdopen(file, "wb"), encoding="utf-8", line_buffering=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class Screen:
    """A terminal, or a pipe, with the program's two streams on it."""

    def __init__(self, monkeypatch, *, terminal: bool) -> None:
        self.terminal = terminal
        self._monkeypatch = monkeypatch
        self._read, write = os.pipe()
        self._out = Stream(write, terminal=terminal)
        self._error = Stream(os.dup(write), terminal=terminal)
        self._seen = ""
        os.set_blocking(self._read, False)

    def begin(self, state, clock: Clock) -> Progress:
        """Begin a program that writes here."""
        self._monkeypatch.setenv("TERM", "xterm")
        self._monkeypatch.setattr(sys, "stdout", self._out)
        self._monkeypatch.setattr(sys, "stderr", self._error)
        return Progress(state, clock)

    @property
    def written(self) -> str:
        """All that was written."""
        with contextlib.suppress(BlockingIOError):
            self._seen += os.read(self._read, 2**16).decode()
        return self._seen

    @property
    def rows(self) -> list[str]:
        """The rows as somebody sees them."""
        rows = []
        for row in self.written.split("\n"):
            shown = ""
            for part in re.split(r"(\r|\x1b\[2K)", row):
                if part == "\x1b[2K":
                    shown = ""
                elif part != "\r":
                    shown = part + shown[len(part) :]
            rows.append(shown)
        return rows

    def close(self) -> None:
        self._out.close()
        self._error.close()
        os.close(self._read)


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request, monkeypatch):
    made = Screen(monkeypatch, terminal=request.param)
    yield made
    monkeypatch.undo()
    made.close()


def say(text: str, *, error: bool = False) -> None:
    """Write as the program does."""
    print(text, end="", file=sys.stderr if error else sys.stdout, flush=True)


def pass_by(shown: Progress, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        clock.now += progress.TICK
        shown.look()


def test_a_program_that_ends_within_seconds_gets_no_line(screen) -> None:
    clock = Clock()
    shown = screen.begin(lambda: "1 step watched", clock)
    say("loss 1.0\n")
    pass_by(shown, clock, 4)
    shown.__exit__()
    assert screen.written == "loss 1.0\n"


def test_a_silent_program_gets_one_line_on_a_terminal_and_few_elsewhere(screen) -> None:
    clock, steps = Clock(), iter(range(100))
    shown = screen.begin(lambda: f"{next(steps)} steps watched", clock)
    pass_by(shown, clock, 70)
    if screen.terminal:
        assert screen.rows == ["doctor, after 1 min 10 s: 65 steps watched"]
    else:
        assert screen.rows == [
            "doctor, after 30 s: 0 steps watched",
            "doctor, after 1 min 0 s: 1 steps watched",
            "",
        ]
    shown.__exit__()
    assert screen.rows[0] == ("" if screen.terminal else "doctor, after 30 s: 0 steps watched")


def test_what_the_program_writes_stands_as_without_doctor(screen) -> None:
    clock = Clock()
    shown = screen.begin(lambda: "many steps watched", clock)
    pass_by(shown, clock, 6)
    say("epoch 1\n")
    pass_by(shown, clock, 6)
    say("epoch 2\n", error=True)
    pass_by(shown, clock, 6)
    say("half a line")
    pass_by(shown, clock, 4)
    say(", and the rest\n")
    pass_by(shown, clock, 1)  # not silent for a second yet
    if screen.terminal:
        assert screen.rows == ["epoch 1", "epoch 2", "half a line, and the rest", ""]
    pass_by(shown, clock, 1)
    if screen.terminal:
        assert screen.rows[-1].startswith("doctor, after")
    shown.__exit__()
    assert screen.rows == ["epoch 1", "epoch 2", "half a line, and the rest", ""]
    assert "write" not in vars(sys.stdout)


def test_a_bar_of_progress_is_not_drawn_over(screen) -> None:
    clock = Clock()
    shown = screen.begin(lambda: "many steps watched", clock)
    say("\r 45%|####", error=True)
    pass_by(shown, clock, 30)
    shown.__exit__()
    expected = [" 45%|####", "doctor, after 30 s: many steps watched", ""]
    assert screen.rows == (expected[:1] if screen.terminal else expected)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_process_that_is_forked_off_leaves_the_line_alone(screen) -> None:
    clock = Clock()
    shown = screen.begin(lambda: "many steps watched", clock)
    pass_by(shown, clock, 6)
    with shown._lock:  # as if it were shown at this moment
        child = os.fork()
        if child == 0:
            threading.Thread(target=lambda: (say("of the child\n"), os._exit(3))).start()
            threading.Event().wait(20)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    shown.__exit__()
    assert "of the child" in screen.written


def test_a_slow_program_is_told_the_steps_and_their_state(tmp_path, capfd, monkeypatch) -> None:
    reached = threading.Event()
    monkeypatch.setattr(progress, "TICK", 0.01)
    monkeypatch.setattr(progress, "EVERY", 0.01)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "reached", reached, raising=False)
    line = Progress._line

    def told(self, now):
        text = line(self, now)
        if "2 steps watched" in text:
            reached.set()
        return text

    monkeypatch.setattr(Progress, "_line", told)
    (tmp_path / "slow.py").write_text(SLOW)
    assert main(["doctor", str(tmp_path / "slow.py")]) == 0
    said = capfd.readouterr()
    assert said.out == "reached True\n"
    assert ": no optimizer step yet\n" in said.err
    assert ": 2 steps watched, 1 skipped, inf or NaN first in step 1" in said.err


SLOW = """
import sys, time
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
time.sleep(0.1)
for scale in (1, float("inf")):
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(3, 4)).square().mean() * scale).backward()
    scaler.step(optimizer)
    scaler.update()
print("reached", sys.reached.wait(30))
"""
