"""A bundle: a directory with which a failing step can be examined on another machine.

- `step.json`: versions, the step's number, the reason for its investigation, and its operators
  (`recording.py`);
- `tensors.safetensors`: parameters, buffers, batch, states of the random generators;
- `evidence.json`: the evidence that the diagnosis was made from.

Reading a bundle runs no code from it: text is validated, tensors are safetensors, and a step calls
only operators of torch's dispatcher.
"""

from __future__ import annotations

import json
import platform
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from halfstep.doctor.bundle.recording import Recording  # noqa: TC001  # pydantic reads it at run time
from halfstep.doctor.record import Evidence, from_json
from halfstep.errors import UserError
from halfstep.files import parse_json, write_atomically
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import TypeAdapter

    from halfstep.doctor.bundle.recorder import Recorder

FORMAT = 1
STEP, TENSORS, EVIDENCE = "step.json", "tensors.safetensors", "evidence.json"
_LOSS = "loss"


@dataclass(frozen=True, slots=True)
class About:
    """The origin of a bundle.

    Attributes:
        format: Format version of the bundle.
        torch: Version of torch.
        python: Version of Python.
        platform: The operating system and the processor.
        iteration: Number of the step, from 0.
        why: The reason why the step was investigated.
    """

    format: int
    torch: str
    python: str
    platform: str
    iteration: int
    why: str


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that has been read.

    Attributes:
        about: The origin of the bundle.
        recording: The operators of the step.
        tensors: The tensors from outside the step (parameters, buffers, batch), by number.
        loss: The tensor that the program called the last backward of the step on; None without a
            backward.
        evidence: The evidence that was recorded in the program.
    """

    about: About
    recording: Recording
    tensors: dict[int, torch.Tensor]
    loss: torch.Tensor | None
    evidence: Evidence = field(default_factory=Evidence)


@dataclass(frozen=True, slots=True)
class _Step:
    about: About
    recording: Recording


@cache
def _step() -> TypeAdapter[_Step]:
    from pydantic import TypeAdapter  # its import and the schema take 0.1 s

    return TypeAdapter(_Step)


def write_step(
    directory: Path, recorder: Recorder, iteration: int, why: str, loss: torch.Tensor | None
) -> None:
    """Write the step and its tensors; `write_evidence` then completes the bundle.

    Args:
        directory: The directory; created if needed.
        recorder: The recorder of the step.
        iteration: Number of the step, from 0.
        why: The reason why the step was investigated.
        loss: The tensor that the last backward of the step was called on; None without a backward.
    """
    about = About(
        FORMAT,
        str(torch.__version__),
        platform.python_version(),
        platform.platform(),
        iteration,
        why,
    )
    tensors = {str(number): each.contiguous() for number, each in recorder.tensors.items()}
    if loss is not None:
        tensors[_LOSS] = loss.detach().cpu().contiguous()
    write_atomically(directory / TENSORS, save(tensors))
    write_atomically(directory / STEP, _step().dump_json(_Step(about, recorder.recording)))


def remove(directory: Path) -> None:
    """Remove the files of an earlier bundle, if there is one."""
    for name in (STEP, TENSORS, EVIDENCE):
        (directory / name).unlink(missing_ok=True)


def write_evidence(directory: Path, evidence: Evidence) -> None:
    """Write the evidence into a bundle, if the directory contains a step."""
    if (directory / STEP).is_file():
        write_atomically(directory / EVIDENCE, evidence.to_json())


def read(directory: Path) -> Bundle:
    """Return the bundle in a directory.

    Raises:
        UserError: If a file of the bundle is missing or invalid.
    """
    step = _parsed(directory / STEP, _step().validate_json)
    if step.about.format != FORMAT:
        raise UserError(
            f"{directory / STEP} has format {step.about.format}; this halfstep reads {FORMAT}; "
            "install the version of halfstep that wrote it"
        )
    tensors = _parsed(directory / TENSORS, lambda _: load_file(directory / TENSORS))
    missing = {str(each.number) for each in step.recording.given} - tensors.keys()
    if missing:
        raise UserError(f"{directory / TENSORS} lacks tensor {min(missing)}; copy it again")
    loss = tensors.pop(_LOSS, None)
    return Bundle(
        step.about,
        step.recording,
        {int(number): each for number, each in tensors.items()},
        loss,
        read_evidence(directory / EVIDENCE),
    )


def read_evidence(path: Path) -> Evidence:
    """Return the evidence in a file of a bundle, or in a `diagnosis.json`.

    Raises:
        UserError: If the file contains no valid evidence.
    """
    evidence: Evidence = _parsed(path, _evidence)
    return evidence


def _evidence(text: bytes) -> Evidence:
    record = parse_json(text)
    if isinstance(record, dict) and "evidence" in record:
        text = json.dumps(record["evidence"]).encode()
    return from_json(text)


def _parsed(path: Path, parse: Any) -> Any:
    if not path.is_file():
        raise UserError(f"there is no file {path}; a bundle is the folder that --report writes")
    from pydantic import ValidationError

    try:
        return parse(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole file"
        raise UserError(f"{path} is not a valid doctor file: {place}: {first['msg']}") from error
    except (ValueError, SafetensorError, OSError) as error:
        said = str(error).partition("\n")[0]
        raise UserError(f"{path} is not a valid doctor file: {said}") from error
