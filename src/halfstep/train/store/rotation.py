"""Which checkpoints a run keeps: the newest few to go on from, the last and the best validated.

    checkpoints/step-00000120.pt  step-00000240.pt  last.pt  best.pt

`last.pt` and `best.pt` are links to what was written once; where a file system has no links they
are copies. A run goes on from the `step-` files only, so that a kill between two writes costs
nothing. What lies in parts beside them (see `parts`) stays as long as one of the files names it.
"""

from __future__ import annotations

import re
import shutil
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.train.store import background, checkpoint, parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from halfstep.train.store.checkpoint import Checkpoint, Which

_NAME = re.compile(r"step-(\d+)\.pt")


class CheckpointWarning(UserWarning):
    """A file could not be written or read, and the run continues."""


def warn(line: str) -> None:
    """Warn of a file that could not be written or read."""
    warnings.warn(line, CheckpointWarning, stacklevel=3)


def path(run: Path, step: int) -> Path:
    """Return where a run keeps the checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:08d}.pt"


def save(
    run: Path,
    state: Checkpoint,
    *,
    keep: int,
    names: tuple[Which, ...] = (),
    say: Callable[[str], object] = warn,
) -> bool:
    """Write a checkpoint beside the others, and keep so many of the newest.

    A disk that is full or gone does not end a run here: `say` is told, and what was written before
    stays as it was.

    Returns:
        Whether it was written, and is known by all of the names that it has from now on.
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
    """Tell of a checkpoint that could not be written, and remove what there is of its parts."""
    newest = newest_first(run)
    left = f"the newest one is {newest[0].name}" if newest else "there is none in the run directory"
    say(f"the checkpoint of step {step} could not be saved: {error.strerror or error}; {left}")
    with suppress(OSError):
        remove_nameless_parts(run)


def remove_nameless_parts(run: Path) -> None:
    """Remove the parts that no checkpoint names any more, or that a kill has left without one.

    None, as long as there is a checkpoint that does not say what it names.
    """
    folder = run / "checkpoints"
    found = list(parts.directories(folder))
    if not found:
        return
    try:
        named = [checkpoint.named_parts(file) for file in folder.glob("*.pt")]
    except OSError:
        return
    kept = {each["directory"] for each in named if each}
    for each in found:
        if each.name not in kept:
            shutil.rmtree(each, ignore_errors=True)


def newest_first(run: Path) -> list[Path]:
    """Return the checkpoints that a run can go on from."""
    folder = run / "checkpoints"
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    steps = {int(match[1]): match.string for match in map(_NAME.fullmatch, names) if match}
    return [folder / steps[step] for step in sorted(steps, reverse=True)]


def newest_whole(run: Path) -> tuple[Path, Checkpoint] | None:
    """Return the newest checkpoint that is whole, and its file; or None where there is none at all.

    One that this process is writing counts. What lies in parts is verified, and not read. Damaged
    ones on the way are warned of.

    Raises:
        UserError: If there are some and all are damaged.
    """
    background.wait()
    damaged = []
    for file in newest_first(run):
        try:
            found = checkpoint.look_into(file)
        except UserError as error:
            damaged.append(str(error))
            continue
        for line in damaged:
            warn(f"{line}; continuing from {file.name}")
        return file, found
    if damaged:
        raise UserError(f"no checkpoint of {str(run)!r} is complete; the newest: {damaged[0]}")
    return None


def forget_after(run: Path, step: int) -> None:
    """Remove the checkpoints after `step`, which a run that goes on from it makes again."""
    for file in newest_first(run):
        match = _NAME.fullmatch(file.name)
        if match and int(match[1]) > step:
            file.unlink()
    remove_nameless_parts(run)


def link(file: Path, to: Path) -> None:
    """Give a checkpoint another name, in one step, whatever had that name before."""
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
        # A link to the file that `to` already is stays behind: rename(2) does nothing then.
        temporary.unlink(missing_ok=True)
