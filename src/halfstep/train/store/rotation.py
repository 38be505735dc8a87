"""Which checkpoints a run keeps: the newest few to resume from, and the last and best validated.

    checkpoints/step-00000120.pt  step-00000240.pt  last.pt  best.pt

`last.pt` and `best.pt` are hard links to `step-` files, or copies if the file system has no hard
links. A run resumes only from `step-` files, so that a kill between writing and linking loses
nothing. A directory of parts (see `parts`) is kept as long as a checkpoint file names it.
"""

from __future__ import annotations

import re
import shutil
import warnings
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train.store import background, checkpoint, parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from halfstep.train.store.checkpoint import Checkpoint, Which

_NAME = re.compile(r"step-(\d+)\.pt")


class CheckpointWarning(UserWarning):
    """A file could not be written or read, and the run continues."""


def warn(line: str) -> None:
    """Warn of a file that could not be written or read."""
    warnings.warn(line, CheckpointWarning, stacklevel=3)


@contextmanager
def going_on(name: str) -> Iterator[None]:
    """Warn if the file `name` cannot be written, instead of ending the run."""
    try:
        yield
    except OSError as error:
        warn(f"{name} could not be written: {error.strerror or error}")


def path(run: Path, step: int) -> Path:
    """Return the path of a run's checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:08d}.pt"


def save(
    run: Path,
    state: Checkpoint,
    *,
    keep: int,
    names: tuple[Which, ...] = (),
    say: Callable[[str], object] = warn,
) -> bool:
    """Write a checkpoint, link its further names to it, and remove old checkpoints.

    An error of the disk does not end the run: it is reported to `say`, and earlier checkpoints stay
    as they were.

    Args:
        run: The run directory.
        state: The checkpoint.
        keep: Number of the newest checkpoints to keep.
        names: Names that the checkpoint gets, besides that of its step.
        say: Called with a line for each error of the disk.

    Returns:
        Whether the checkpoint was written and has all its names.
    """
    file = path(run, state.step)
    try:
        checkpoint.save(file, state)
    except OSError as error:
        give_up(run, state.step, error, say)
        return False
    try:
        for name in names:
            link(file, checkpoint.path(run, name))
    except OSError as error:
        named = " and ".join(f"{name}.pt" for name in names)
        say(f"{file.name} was saved, but not as {named}: {error.strerror or error}")
        return False
    try:
        for old in newest_first(run)[keep:]:
            old.unlink()
        remove_nameless_parts(run)
    except OSError as error:
        say(f"old checkpoints could not be removed: {error.strerror or error}")
    return True


def give_up(run: Path, step: int, error: OSError, say: Callable[[str], object]) -> None:
    """Report a checkpoint that could not be written, and remove those parts that were written."""
    newest = newest_first(run)
    left = f"the newest one is {newest[0].name}" if newest else "there is none in the run directory"
    say(f"the checkpoint of step {step} could not be saved: {error.strerror or error}; {left}")
    with suppress(OSError):
        remove_nameless_parts(run)


def remove_nameless_parts(run: Path) -> None:
    """Remove the directories of parts that no checkpoint file names.

    If a checkpoint file cannot be read, nothing is removed, because it may name any of them.
    """
    folder = run / "checkpoints"
    directories = list(parts.directories(folder))
    if not directories:
        return
    try:
        named = [checkpoint.named_parts(file) for file in folder.glob("*.pt")]
    except OSError:
        return
    kept = {description["directory"] for description in named if description}
    for directory in directories:
        if directory.name not in kept:
            shutil.rmtree(directory, ignore_errors=True)


def newest_first(run: Path) -> list[Path]:
    """Return the files that a run can resume from, the newest first."""
    folder = run / "checkpoints"
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    steps = {int(match[1]): match.string for match in map(_NAME.fullmatch, names) if match}
    return [folder / steps[step] for step in sorted(steps, reverse=True)]


def newest_whole(run: Path) -> tuple[Path, Checkpoint] | None:
    """Return the file and content of the newest undamaged checkpoint; None if there are none.

    If this process is writing a checkpoint in the background, the function waits for it. Parts are
    verified but not loaded. Damaged checkpoints that are newer cause warnings.

    Raises:
        UserError: If there are checkpoints, but all are damaged.
    """
    background.wait()
    damaged = []
    for file in newest_first(run):
        try:
            stored = checkpoint.look_into(file)
        except UserError as error:
            damaged.append(str(error))
            continue
        for line in damaged:
            warn(f"{line}; continuing from {file.name}")
        return file, stored
    if damaged:
        raise UserError(f"no checkpoint of {str(run)!r} is complete; the newest: {damaged[0]}")
    return None


def forget_after(run: Path, step: int) -> None:
    """Remove the checkpoints after `step`, which a run resumed at that step writes again."""
    for file in newest_first(run):
        match = _NAME.fullmatch(file.name)
        if match and int(match[1]) > step:
            file.unlink()
    remove_nameless_parts(run)


def link(file: Path, to: Path) -> None:
    """Give a checkpoint file a second name, atomically, in place of any earlier file of that name.

    If `to` is in another folder, the checkpoint's parts are linked into that folder as well.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    named = checkpoint.named_parts(file) if to.parent.resolve() != file.parent.resolve() else None
    if named:
        parts.bring(file.parent, named, to.parent)
    temporary = to.with_name(f".{to.name}.{file.stem}.tmp")
    temporary.unlink(missing_ok=True)
    parts.link_or_copy(file, temporary)
    try:
        temporary.replace(to)
    finally:
        # If `to` is already a link to the same file, rename(2) does nothing and leaves `temporary`.
        temporary.unlink(missing_ok=True)
