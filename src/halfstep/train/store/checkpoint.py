"""A checkpoint: everything needed to resume a run exactly, or to use its model without the data.

`torch.save` writes the file, so any version of torch can read it. The file is a zip archive with a
CRC-32 checksum of each member, by which damage is detected. Loading it runs no code, because it
contains only tensors and plain containers.

If several processes share a model (FSDP2), the tensors of the model and of the engine are in a
directory beside the file; see `parts`.
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

_NO_IMAGES = {"image_shape": [0, 0, 0], "mean": [], "std": []}
"""Stands for the `preprocessing` of a run that trains anything but images of classes."""
_OF_OTHER_CONTENT = (TypeError, KeyError, IndexError, ValueError, AttributeError)
_OF_DAMAGE = (
    *(pickle.UnpicklingError, zipfile.BadZipFile),
    *(RuntimeError, EOFError, OSError, MemoryError),
)

State = dict[str, Any]
"""The saved state of an observer: tensors on the CPU and plain data."""


class Rank(TypedDict):
    """The state that differs between processes: random number generators and observers."""

    rng: dict[str, Any]
    observers: dict[str, State]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run between two micro-batches.

    Attributes:
        model: The model's state dict, in fp32 whatever the recipe.
        averaged: The same, with the weights replaced by their averages; None without averaging.
        engine: The engine's state dict: optimizer, loss scale, schedule, and a window that is not
            full yet.
        schedule: State of a schedule that steps after each validation; empty for all others.
        epoch: Number of finished epochs.
        batch: Number of finished batches of the current epoch.
        step: Number of finished steps, including skipped ones.
        validated: Whether `loss` and `accuracy` were measured with exactly these weights.
        loss: Loss of the newest validation; nan before the first.
        accuracy: Accuracy of the newest validation, 0 to 1; nan before the first.
        classes: Names of the classes, in the order of the logits; empty without classes.
        preprocessing: `image_shape` (channels, height, width), and `mean` and `std` of each
            channel, for pixels from 0 to 1; empty without images.
        rng: States of the random number generators; see `random_state`.
        progress: Counters, the best and the newest validation; see `Progress`.
        config: The whole config, as plain data.
        observers: State of each observer that has one, by the observer's name; see `Observer`.
        others: `rng` and `observers` of every process except the first, by rank.
        parts: The directory that contains `model`, `averaged` and `engine`, which are then empty in
            the file until `load` reads them; None if the file itself contains them.
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
        """`rng` and `observers` of every process, by rank."""
        return [{"rng": self.rng, "observers": self.observers}, *self.others]

    @property
    def weights(self) -> dict[str, Any]:
        """State dict with the weights that were validated: the averages if the run keeps any."""
        return self.model if self.averaged is None else self.averaged


def path(run: Path, which: Which) -> Path:
    """Return the path of a run's best or last validated checkpoint."""
    return run / "checkpoints" / f"{which}.pt"


def save(file: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint file atomically; an earlier file is kept until the new one is complete."""
    fields = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    state = {"format": migration.FORMAT, **fields}
    write_atomically(file, functools.partial(_write, _with_strings_once(state)))


def load(file: Path) -> Checkpoint:
    """Load a checkpoint with its parts onto the CPU, in this process alone.

    Raises:
        UserError: If the file does not exist, is damaged, or contains anything but data.
    """
    stored = look_into(file)
    if stored.parts is None:
        return stored
    with _readable(file):
        return replace(stored, **parts_of.read(file.parent, stored.parts))


def look_into(file: Path) -> Checkpoint:
    """Load a checkpoint file onto the CPU; parts in other files are verified but not loaded."""
    background.wait()
    with _readable(file):
        _verify(file)
        content = migration.migrated(torch.load(file, map_location="cpu", weights_only=True))
        stored = Checkpoint(
            **{name: content[name] for name in Checkpoint.__dataclass_fields__ if name in content}
        )
        _refuse_other_types(stored)
        if stored.parts is not None:
            parts_of.verify(file.parent, stored.parts)
        return stored


def _refuse_other_types(stored: Checkpoint) -> None:
    """Refuse a checkpoint with a field of a type or length that `save` never writes."""
    sections = ("model", "engine", "schedule", "preprocessing", "rng", "progress", "config")
    numbers = {"epoch": int, "batch": int, "step": int, "validated": bool}
    if not all(isinstance(getattr(stored, name), dict) for name in (*sections, "observers")):
        raise TypeError("a section is not a mapping")
    images = stored.preprocessing or _NO_IMAGES
    shape, *levels = (images[key] for key in ("image_shape", "mean", "std"))
    weights = [stored.model, *([] if stored.averaged is None else [stored.averaged])]
    are_right = (
        all(type(getattr(stored, name)) is kind for name, kind in numbers.items())
        and all(isinstance(figure, float) for figure in (stored.loss, stored.accuracy))
        and (len(stored.classes) > 1 or not stored.preprocessing)
        and all(isinstance(name, str) for name in stored.classes)
        and [type(side) for side in shape] == [int] * 3
        and all(len(level) == shape[0] and set(map(type, level)) <= {float} for level in levels)
        and all(isinstance(weight, dict) for weight in weights)
        and all(isinstance(tensor, torch.Tensor) for state in weights for tensor in state.values())
        and all(isinstance(rank, dict) for rank in stored.others)
        and all(isinstance(rank["rng"], dict) for rank in stored.others)
        and all(
            isinstance(state, dict) for rank in stored.ranks for state in rank["observers"].values()
        )
    )
    if not are_right:
        raise TypeError("a field is not what a run writes there")


def named_parts(file: Path) -> Parts | None:
    """Return the field `parts` of a checkpoint file, without reading tensors; None if not set.

    Raises:
        OSError: If the file is damaged or cannot be read.
    """
    named: Parts | None = _glance(file).get("parts")
    return named if isinstance(named, dict) else None


def epoch_of(file: Path) -> int | None:
    """Return the number of finished epochs of a checkpoint; None if the file cannot be read."""
    try:
        epoch: int | None = _glance(file).get("epoch")
    except OSError:
        return None
    return epoch


def _glance(file: Path) -> dict[str, Any]:
    """Return the content of a checkpoint file, without reading its tensors (memory-mapped).

    Raises:
        OSError: If the file is damaged or cannot be read.
    """
    try:
        with _readable(file):
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except UserError as error:
        raise OSError(str(error)) from error
    return content if isinstance(content, dict) else {}


def size(file: Path) -> int:
    """Return the size of a checkpoint in bytes, including its parts."""
    named = named_parts(file)
    return file.stat().st_size + (parts_of.size(file.parent, named) if named else 0)


@contextmanager
def explained(file: Path) -> Iterator[None]:
    """Turn an error from unusable checkpoint content into a UserError of one line."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError, dist.DistError):
        raise  # The content of the file did not cause these.
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
    """Refuse a compressed archive, which may unpack to any size; torch.save never compresses.

    A file that is not a zip archive is not refused here, because torch refuses it.

    Raises:
        OSError: If a member of the archive is compressed.
        zipfile.BadZipFile: If the archive is damaged.
    """
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file) as archive:
        for part in archive.infolist():
            if part.compress_type != zipfile.ZIP_STORED or part.file_size > part.compress_size:
                raise OSError(f"{part.filename} is compressed, to {part.file_size:,} bytes")


def _verify(file: Path) -> None:
    """Compare all members of a checkpoint file with their checksums.

    Raises:
        OSError: If a member is damaged or compressed.
        zipfile.BadZipFile: If the file is not an intact zip archive.
    """
    refuse_compressed(file)
    with zipfile.ZipFile(file) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise OSError(f"the checksum of {damaged} is wrong")


class _Recording:
    """A file for `torch.save` that keeps the error of a failed write.

    Attributes:
        error: The error of a failed write, or None.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.flush = file.flush
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        """Write `content`; keep the error if that fails."""
        try:
            return self._file.write(content)
        except OSError as error:
            self.error = error
            raise


def _with_strings_once(value: Any) -> Any:
    """Copy plain containers so that equal strings are one object, which pickle writes only once.

    Strings that a resumed run loaded from a checkpoint are separate objects. Without this, its
    checkpoints would be larger than those of an uninterrupted run.
    """
    if type(value) is dict:
        return {_with_strings_once(key): _with_strings_once(item) for key, item in value.items()}
    if type(value) is list:
        return [_with_strings_once(item) for item in value]
    return sys.intern(value) if type(value) is str else value


def _write(state: dict[str, Any], file: BinaryIO) -> None:
    recording = _Recording(file)
    try:
        torch.save(state, cast("IO[bytes]", recording))
    except RuntimeError:
        # After a failed write torch still closes the archive. The error of closing it hides the
        # first one, such as a full disk.
        if recording.error is not None:
            raise recording.error from None
        raise
