"""The tensors of a checkpoint in parts, if several processes share a model (FSDP2).

    checkpoints/step-00000120.pt  step-00000120-5f3a9c01/

Each process writes its part into the directory, through `torch.distributed.checkpoint`. The
checkpoint file beside the directory contains its name and the checksums of its files, and is
written last. So a directory that no checkpoint file names was left by a killed process.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from typing import TYPE_CHECKING, Any, TypedDict

from halfstep.engine.checkpoints.sharded import REST, read_sharded, save_sharded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from halfstep.engine import Engine
    from halfstep.train.processes.processes import Processes

_NAME = re.compile(r"step-\d+-[0-9a-f]{8}")
_OF_THE_FIRST = (REST, ".metadata")


class Parts(TypedDict):
    """The description of a directory of parts in its checkpoint file, as plain data.

    Attributes:
        directory: Name of the directory.
        sha256: SHA-256 checksum of each file in the directory, by the file's name.
        averaged: Index of each weight's average among the averages in the engine's state, by the
            weight's name; empty without averaging.
    """

    directory: str
    sha256: dict[str, str]
    averaged: dict[str, int]


def write(
    folder: Path, step: int, engine: Engine, processes: Processes, *, averaged: bool
) -> Parts | None:
    """Write this process's part into a new directory in `folder`; every process calls this.

    Returns:
        The description for the checkpoint file on the first process; None on the others.

    Raises:
        OSError: If a part cannot be written; raised at least on the first process.
    """
    name = processes.from_first(lambda: f"step-{step:08d}-{secrets.token_hex(4)}")
    save_sharded(folder / name, engine)
    sums = processes.gather(_own_sums(folder / name, processes))
    if not processes.is_first:
        return None
    for rank, files in enumerate(sums):
        if isinstance(files, str):
            raise OSError(f"rank {rank} cannot read what it has written: {files}")
    together = {file: digest for files in sums for file, digest in files.items()}
    return Parts(directory=name, sha256=together, averaged=_averaged(engine) if averaged else {})


def read(folder: Path, parts: Parts) -> dict[str, Any]:
    """Load all parts, in this process alone.

    Returns:
        The fields `model`, `averaged` and `engine` of a checkpoint: whole tensors, on the CPU.
    """
    state = read_sharded(folder / parts["directory"])
    (model,), engine = state["models"], state["engine"]
    averaged = None
    if parts["averaged"]:
        (means,) = (average["weights"] for average in engine["averages"])
        averaged = model | {name: means[at] for name, at in parts["averaged"].items()}
    return {"model": model, "averaged": averaged, "engine": engine}


def verify(folder: Path, parts: Parts) -> None:
    """Compare all files of the directory with their checksums.

    Raises:
        OSError: If a file is damaged, missing, or not in the description.
    """
    where = folder / parts["directory"]
    there = {file.name for file in where.iterdir()} if where.is_dir() else set()
    for name in sorted(there | parts["sha256"].keys()):
        if name not in there:
            raise OSError(f"{parts['directory']}/{name} is missing")
        if _sum(where / name) != parts["sha256"].get(name):
            raise OSError(f"the checksum of {parts['directory']}/{name} is wrong")


def size(folder: Path, parts: Parts) -> int:
    """Return the size of all parts in bytes."""
    return sum((folder / parts["directory"] / name).stat().st_size for name in parts["sha256"])


def directories(folder: Path) -> Iterator[Path]:
    """Yield the directories of parts in a folder, including incomplete ones."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if _NAME.fullmatch(path.name) and path.is_dir():
            yield path


def bring(folder: Path, parts: Parts, to: Path) -> None:
    """Link the parts into the folder `to`, or copy them if the file system has no hard links."""
    target = to / parts["directory"]
    if target.is_dir():
        shutil.rmtree(target)  # a killed process may have left it incomplete
    shutil.copytree(folder / parts["directory"], target, copy_function=link_or_copy)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Hard-link `source` as `target`, or copy it if the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _own_sums(where: Path, processes: Processes) -> dict[str, str] | str:
    """Return the checksum of each file that this process wrote, or the message of an OSError."""
    files = list(where.glob(f"__{processes.rank}_*"))
    if processes.is_first:
        files += [where / name for name in _OF_THE_FIRST]
    try:
        return {file.name: _sum(file) for file in files}
    except OSError as error:
        return str(error)


def _sum(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _averaged(engine: Engine) -> dict[str, int]:
    """Return the index of each weight's average in the engine's state, by the weight's name."""
    held = [param for group in engine.optimizer.param_groups for param in group["params"]]
    places = {param: at for at, param in enumerate(held)}
    weights = engine.bare_model.named_parameters(remove_duplicate=False)
    return {name: places[param] for name, param in weights if param in places}
