"""One checkpoint: everything a run needs to go on exactly, and to be used without its data set.

The file is what `torch.save` writes, so any torch reads it: a zip archive with a CRC-32 of each of
its parts, by which damage is found. Loading runs no code: tensors and plain containers only.

Where several processes share a model, its tensors and the engine's lie in a directory beside the
file; see `parts`.
"""

from __future__ import annotations

import functools
import pickle
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal, TypedDict, cast

import torch
import torch.distributed as dist

from halfstep.errors import UserError, reason
from halfstep.files import write_atomically
from halfstep.train.store import background, migration
from halfstep.train.store import parts as parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from halfstep.train.store.parts import Parts

Which = Literal["best", "last"]

_OF_OTHER_CONTENT = (TypeError, KeyError, IndexError, ValueError, AttributeError)
_OF_DAMAGE = (
    *(pickle.UnpicklingError, zipfile.BadZipFile),
    *(RuntimeError, EOFError, OSError, MemoryError),
)

State = dict[str, Any]
"""What an observer has to save: tensors on the CPU and plain data."""


class Rank(TypedDict):
    """What one of several processes has of its own: random numbers, and its observers' states."""

    rng: dict[str, Any]
    observers: dict[str, State]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run between two micro-batches.

    Attributes:
        model: The model's state dict, in fp32 whatever the recipe.
        averaged: The same with the averages in place of the weights; None where none are kept.
        engine: The engine's state dict: optimizer, loss scale, schedule, a half-filled window.
        schedule: State of a schedule that moves with validations; empty for all others.
        epoch: Finished epochs.
        batch: Batches done of the epoch after them.
        step: Finished optimizer steps.
        validated: Whether `loss` and `accuracy` are of exactly these weights.
        loss: Loss of the newest validation; nan before the first.
        accuracy: Its accuracy, 0 to 1; nan before the first.
        classes: Names of the classes, in the order of the logits.
        preprocessing: `image_shape` (channels, height, width), and `mean` and `std` of each
            channel, for pixels from 0 to 1.
        rng: States of the random number generators; see `random_state`.
        progress: Counters and the best validation; see `progress`.
        config: The whole config, as plain data.
        observers: State of each observer that has one, by its name; see `observer`.
        others: What each process but the first has of its own, by rank: `rng` and `observers`.
        parts: Where `model`, `averaged` and `engine` lie if not in the file itself; they are empty
            until they are read from there.
    """

    model: dict[str, Any]
    averaged: dict[str, Any] | None
    engine: dict[str, Any]
    schedule: dict[str, Any]
    epoch: int
    batch: int
    step: int
    validated: bool
    loss: float
    accuracy: float
    classes: tuple[str, ...]
    preprocessing: dict[str, Any]
    rng: dict[str, Any]
    progress: dict[str, Any]
    config: dict[str, Any]
    observers: dict[str, State] = field(default_factory=dict)
    others: list[Rank] = field(default_factory=list)
    parts: Parts | None = None

    @property
    def ranks(self) -> list[Rank]:
        """What each process has of its own, by rank."""
        return [{"rng": self.rng, "observers": self.observers}, *self.others]

    @property
    def weights(self) -> dict[str, Any]:
        """The weights that were validated: the averages where they are kept, else the model's."""
        return self.model if self.averaged is None else self.averaged


def path(run: Path, which: Which) -> Path:
    """Return where a run keeps its best or last validated checkpoint."""
    return run / "checkpoints" / f"{which}.pt"


def save(file: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; one that was there before stays whole until the new one is."""
    fields = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    state = {"format": migration.FORMAT, **fields}
    write_atomically(file, functools.partial(_write, _with_strings_once(state)))


def load(file: Path) -> Checkpoint:
    """Read a whole checkpoint onto the CPU, in this process alone.

    Raises:
        UserError: If there is none, if it is damaged, or if it holds anything but data.
    """
    stored = look_into(file)
    if stored.parts is None:
        return stored
    with _readable(file):
        return replace(stored, **parts_of.read(file.parent, stored.parts))


def look_into(file: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU, but for what lies in parts, which are verified only."""
    background.wait()
    with _readable(file):
        _verify(file)
        found = migration.migrated(torch.load(file, map_location="cpu", weights_only=True))
        stored = Checkpoint(
            **{name: found[name] for name in Checkpoint.__dataclass_fields__ if name in found}
        )
        _refuse_other_types(stored)
        if stored.parts is not None:
            parts_of.verify(file.parent, stored.parts)
        return stored


def _refuse_other_types(stored: Checkpoint) -> None:
    """Refuse fields that `save` never writes so."""
    sections = ("model", "engine", "schedule", "preprocessing", "rng", "progress", "config")
    numbers = {"epoch": int, "batch": int, "step": int, "validated": bool}
    if not all(isinstance(getattr(stored, name), dict) for name in (*sections, "observers")):
        raise TypeError("a section is not a mapping")
    shape, *levels = (stored.preprocessing[key] for key in ("image_shape", "mean", "std"))
    weights = [stored.model, *([] if stored.averaged is None else [stored.averaged])]
    are_right = (
        all(type(getattr(stored, name)) is kind for name, kind in numbers.items())
        and all(isinstance(each, float) for each in (stored.loss, stored.accuracy))
        and len(stored.classes) > 1
        and all(isinstance(name, str) for name in stored.classes)
        and [type(side) for side in shape] == [int] * 3
        and all(len(each) == shape[0] and set(map(type, each)) == {float} for each in levels)
        and all(isinstance(each, dict) for each in weights)
        and all(isinstance(each, torch.Tensor) for state in weights for each in state.values())
        and all(isinstance(rank, dict) for rank in stored.others)
        and all(isinstance(rank["rng"], dict) for rank in stored.others)
        and all(
            isinstance(each, dict) for rank in stored.ranks for each in rank["observers"].values()
        )
    )
    if not are_right:
        raise TypeError("a field is not what a run writes there")


def named_parts(file: Path) -> Parts | None:
    """Return the parts that a file names, without looking at anything else; None if it names none.

    Raises:
        OSError: If that cannot be told: the file is damaged, or cannot be read now.
    """
    named: Parts | None = _glance(file).get("parts")
    return named if isinstance(named, dict) else None


def epoch_of(file: Path) -> int | None:
    """Return after how many epochs a checkpoint was made; None where there is none to be read."""
    try:
        epoch: int | None = _glance(file).get("epoch")
    except OSError:
        return None
    return epoch


def _glance(file: Path) -> dict[str, Any]:
    """Return what a file holds, without reading its tensors.

    Raises:
        OSError: If it is damaged, or cannot be read now.
    """
    try:
        with _readable(file):
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except UserError as error:
        raise OSError(str(error)) from error
    return found if isinstance(found, dict) else {}


def size(file: Path) -> int:
    """Return the bytes of a checkpoint, its parts included."""
    named = named_parts(file)
    return file.stat().st_size + (parts_of.size(file.parent, named) if named else 0)


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Refuse, in one line, a checkpoint of whose content something cannot be used."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError, dist.DistError):
        raise  # They say nothing of the file.
    except (RuntimeError, *_OF_OTHER_CONTENT) as error:
        raise UserError(f"{str(file)!r} is not a checkpoint of halfstep") from error


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except migration.NewerFormatError as error:
        raise UserError(f"{str(file)!r} {error}") from error
    except FileNotFoundError as error:
        raise UserError(f"no checkpoint at {str(file)!r}; the run has finished no epoch") from error
    except _OF_DAMAGE as error:
        raise UserError(
            f"{str(file)!r} is damaged or not a checkpoint of halfstep: {reason(error)}"
        ) from error
    except _OF_OTHER_CONTENT as error:
        raise UserError(f"{str(file)!r} is not a checkpoint of halfstep") from error


def refuse_compressed(file: Path) -> None:
    """Refuse an archive that unpacks to more than its size: torch.save compresses nothing.

    Raises:
        OSError: If a part of it is compressed.
        zipfile.BadZipFile: If it is a damaged archive; a file that is none is left to torch.
    """
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        for part in archive.infolist():
            if part.compress_type != zipfile.ZIP_STORED or part.file_size > part.compress_size:
                raise OSError(f"{part.filename} is compressed, to {part.file_size:,} bytes")


def _verify(file: Path) -> None:
    """Compare all parts of a file with their checksums."""
    refuse_compressed(file)
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise OSError(f"the checksum of {damaged} is wrong")


class _Recording:
    """Passes on what is written, and remembers why that failed.

    Attributes:
        error: Why a write failed, or None.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.flush = file.flush
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        """Write."""
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise


def _with_strings_once(value: Any) -> Any:
    """Return plain containers in which equal strings are one object, which pickle writes once.

    So the file of a run that was picked up, whose strings come from another file, is as long as
    that of a run that was not.
    """
    if type(value) is dict:
        return {_with_strings_once(key): _with_strings_once(each) for key, each in value.items()}
    if type(value) is list:
        return [_with_strings_once(each) for each in value]
    return sys.intern(value) if type(value) is str else value


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    recording = _Recording(file)
    try:
        torch.save(state, cast("IO[bytes]", recording))
    except RuntimeError:
        # torch ends the archive even so, and hides a full disk behind an error of that.
        if recording.error is not None:
            raise recording.error from None
        raise
