"""Locks a directory, so that only one process at a time uses it.

A run locks its run directory, and a comparison locks its own directory. The lock is a `flock` on
the file `.lock`, which also names the process that holds it. The kernel releases the lock when the
last descriptor is closed, also after a SIGKILL, so that no clean-up is needed.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from halfstep.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NAME = ".lock"
_POLL_S = 0.5
_LONGEST_HOLDER = 512

_held: set[int] = set()


class LockWarning(UserWarning):
    """A directory cannot be locked, so a second run could write to it at the same time."""


@contextmanager
def locked(
    directory: Path, refusal: Callable[[str], str], *, patience: float = 0.0
) -> Iterator[int]:
    """Hold the lock of a directory while the block runs.

    If the directory is empty after the block, the lock file and the directories that were created
    for it are removed.

    Args:
        directory: The directory; created if it does not exist.
        refusal: Returns the message of the error, given the holder ("process 12 on node3").
        patience: Seconds to wait for another process to release the lock.

    Yields:
        The file descriptor of the lock. A program that inherits the descriptor also holds the lock
        until it ends. A process that is only forked, such as a data worker, does not.

    Raises:
        UserError: If another process holds the lock.
        OSError: If the directory cannot be written.
    """
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    lock = _taken(directory, refusal, time.monotonic() + patience)
    _held.add(lock)
    try:
        yield lock
    finally:
        _held.discard(lock)
        os.close(lock)
        if directory in made:
            _remove_if_empty(directory, made)


def _taken(directory: Path, refusal: Callable[[str], str], until: float) -> int:
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock = os.open(directory / _NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except FileNotFoundError:
            if not directory.is_dir():  # its last holder has just removed it
                continue
            raise
        try:
            _lock(lock, directory)
        except BlockingIOError:
            holder = os.pread(lock, _LONGEST_HOLDER, 0).decode(errors="replace").strip()
            os.close(lock)
            if time.monotonic() >= until:
                raise UserError(refusal(holder or "another process")) from None
            time.sleep(_POLL_S)
            continue
        if _is_there(lock, directory / _NAME):
            break
        os.close(lock)
    with suppress(OSError):  # on a full disk the lock works without the name of its holder
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


def _lock(lock: int, directory: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:  # some network file systems have no locks
        warnings.warn(
            f"{str(directory)!r} cannot be locked: {error.strerror}; make sure that no other "
            "process writes to it",
            LockWarning,
            stacklevel=2,
        )


def _is_there(lock: int, file: Path) -> bool:
    """Tell whether the locked file still exists: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(lock), file.stat())
    except FileNotFoundError:
        return False


def _remove_if_empty(directory: Path, made: list[Path]) -> None:
    """Remove the lock file and the created directories if they are empty and nobody holds the lock.

    A program that inherited the descriptor may still hold it.
    """
    with suppress(OSError):
        lock = os.open(directory / _NAME, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if [entry.name for entry in directory.iterdir()] == [_NAME]:
                (directory / _NAME).unlink()
                for folder in made:
                    folder.rmdir()
        finally:
            os.close(lock)


def _let_go() -> None:
    """Close the copies of lock descriptors: a data worker may outlive a killed run by seconds."""
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
