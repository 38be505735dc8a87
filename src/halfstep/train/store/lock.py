"""Keeps a directory to one process at a time, until that process ends in whatever way.

A run locks its run directory, and a comparison its own. The lock is `flock` on a file `.lock` that
also says who holds it. The kernel releases it when the last descriptor is closed, so that nothing
is left to clean up after a SIGKILL.
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
    """A directory cannot be locked, so that nothing keeps a second run out of it."""


@contextmanager
def locked(
    directory: Path, refusal: Callable[[str], str], *, patience: float = 0.0
) -> Iterator[int]:
    """Make a directory and keep every other holder of its lock out of it.

    What was made for the lock goes again if the directory is still empty at the end.

    Args:
        directory: The directory; made if it does not exist.
        refusal: From who holds the lock ("process 12 on node3") to the message of the error.
        patience: Seconds to wait for another holder.

    Yields:
        The descriptor of the lock. A program that inherits it keeps the lock until it ends, too;
        a process that is only forked, such as a data worker, does not.

    Raises:
        UserError: If another process holds the lock.
        OSError: If the directory cannot be written.
    """
    made = [each for each in (directory, *directory.parents) if not each.exists()]
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
            if not directory.is_dir():  # another process left, and removed what it had made
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
    with suppress(OSError):  # a full disk: the lock holds without the name of its holder
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
    """Tell whether the file that was locked has not been removed by its last holder."""
    try:
        return os.path.samestat(os.fstat(lock), file.stat())
    except FileNotFoundError:
        return False


def _remove_if_empty(directory: Path, made: list[Path]) -> None:
    """Remove what was made for a lock, unless a program that has inherited it still runs."""
    with suppress(OSError):
        lock = os.open(directory / _NAME, os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if [each.name for each in directory.iterdir()] == [_NAME]:
                (directory / _NAME).unlink()
                for each in made:
                    each.rmdir()
        finally:
            os.close(lock)


def _let_go() -> None:
    """Close what a fork has copied: a data worker may outlive a killed run by seconds."""
    for lock in _held:
        os.close(lock)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
