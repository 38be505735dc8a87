"""Handles stdout and stderr that are closed, full, or no longer read.

`halfstep recipes | head -1` ends like `cat FILE | head -1`: without a message, and with the exit
code of a program that SIGPIPE ended.
"""

import os
import select
import sys
from contextlib import suppress
from typing import TextIO

import typer

READER_LEFT = 128 + 13
"""SIGPIPE is signal 13."""


def open_closed() -> None:
    """Open the null device where stdin, stdout or stderr was closed (`>&-`).

    Otherwise the next opened file, such as a checkpoint, would get the stream's file descriptor,
    and a library's output would be written into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def is_of_the_reader(error: BaseException) -> bool:
    """Tell whether the reason for an error is that no process reads stdout or stderr any more."""
    if isinstance(error, SystemExit):
        return isinstance(error.__context__, BrokenPipeError)  # rich raises this
    return isinstance(error, BrokenPipeError) and any(map(_is_unread, (sys.stdout, sys.stderr)))


def _is_unread(stream: TextIO) -> bool:
    looked = select.poll()
    try:
        looked.register(stream.fileno(), 0)
    except ValueError:  # a stream that is no file, as in tests
        return False
    return bool(looked.poll(0))  # POLLERR, or POLLHUP


def say(line: str) -> None:
    """Write a line to stderr, if stderr can be written."""
    with suppress(OSError):
        typer.echo(line, err=True)


def let_go() -> None:
    """Drop unwritten output, which would make Python print an error and change the code at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
