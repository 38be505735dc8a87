"""Checkpoints that run no code when loaded: tensors and plain containers, nothing else.

`last.pt` is the newest finished epoch, `best.pt` the one with the highest validation accuracy.
"""

from __future__ import annotations

import functools
import pickle
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from halfstep.errors import UserError
from halfstep.train.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

Which = Literal["best", "last"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run at the end of an epoch.

    Attributes:
        model: The model's state dict, in fp32 whatever the recipe.
        engine: The engine's state dict: optimizer, loss scale, schedule, counters.
        epoch: Finished epochs.
        step: Finished optimizer steps.
        loss: Validation loss.
        accuracy: Validation accuracy, 0 to 1.
    """

    model: dict[str, Any]
    engine: dict[str, Any]
    epoch: int
    step: int
    loss: float
    accuracy: float


def path(run: Path, which: Which) -> Path:
    """Return where a run keeps its best or last checkpoint."""
    return run / "checkpoints" / f"{which}.pt"


def save(file: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the one before it stays whole until the new one is."""
    state = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    write_atomically(file, functools.partial(torch.save, state))


def load(file: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU.

    Raises:
        UserError: If there is none, if it is damaged, or if it holds anything but data.
    """
    try:
        return Checkpoint(**torch.load(file, map_location="cpu", weights_only=True))
    except FileNotFoundError as error:
        raise UserError(f"no checkpoint at {str(file)!r}; the run has finished no epoch") from error
    except (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"{str(file)!r} is damaged or no checkpoint of halfstep: {reason}"
        ) from error
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"{str(file)!r} is no checkpoint of halfstep") from error
