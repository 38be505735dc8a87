"""A command's output that no one reads, that cannot be written, or that is closed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.train.config import files as config_files

BEGIN = "import os, sys; from halfstep.cli import main\n"


def ended(program, *, flags=(), stdout=subprocess.PIPE):
    """Run a program; return its exit code, stdout (None where it went elsewhere) and stderr."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", BEGIN + program],
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture
def unread():
    """The end to write to of a pipe that no one reads."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


# As JSON by print, as a table by rich, as text left in Python's buffer.
@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("sys.exit(main(['recipes', '--json']))", ["-u"]),
        ("sys.exit(main(['recipes']))", []),
        ("sys.stdout.write('x'); sys.exit(main(['configs']))", []),
    ],
)
def test_reader_that_leaves_ends_a_command_as_sigpipe_does(unread, program, flags):
    assert ended(program, flags=flags, stdout=unread) == (141, None, "")


def test_full_device_is_one_line_and_exit_code_2():
    with Path("/dev/full").open("wb") as full:
        code, _, err = ended("sys.exit(main(['configs']))", stdout=full)
    assert (code, err) == (2, "error: [Errno 28] No space left on device\n")


def test_full_device_for_errors_leaves_the_exit_code():
    program = """
os.dup2(os.open('/dev/full', os.O_WRONLY), 2)
sys.exit(main(['train', 'nosuch']))
"""
    assert ended(program) == (2, b"", "")


def test_closed_streams_are_opened_so_that_no_file_takes_their_numbers():
    program = """
import subprocess
child = '''
import os, sys
from halfstep.cli import main
code = main(['recipes']) or main(['train', 'nosuch'])
file = os.open(os.devnull, os.O_RDONLY)
sys.exit(100 + 10 * code + file)
'''
sys.exit(subprocess.call(['/bin/sh', '-c', '"$0" -c "$1" <&- >&- 2>&-', sys.executable, child]))
"""
    code, out, err = ended(program)
    assert (code >= 123, out, err) == (True, b"", "")  # 2 from train, a file number of 3 or more


def test_broken_pipe_between_processes_is_not_blamed_on_the_reader(halfstep, monkeypatch):
    def load(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(config_files, "load", load)
    assert halfstep("train", "digits") == (2, "", "error: [Errno 32] Broken pipe\n")


@pytest.mark.parametrize("columns", ["20", "1", "0", "-5", "wide"])
def test_any_width_and_no_terminal_will_do(halfstep, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "dumb")
    for command in ("recipes", "configs", "--help"):
        assert halfstep(command)[0] == 0
    monkeypatch.delenv("TERM")
    assert halfstep("recipes")[::2] == (0, "")
