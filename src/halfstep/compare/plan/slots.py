"""Slots of this machine: each runs one cell at a time, on one GPU per process of the cell.

A slot is text: "cpu", "cuda:1", "cuda:0,1" for two GPUs, or "cuda" for the first GPUs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.plurals import counted
from halfstep.train.environment import processors

if TYPE_CHECKING:
    from collections.abc import Sequence

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def deal_out(devices: Sequence[str], processes: int) -> tuple[str, ...]:
    """Group devices into slots, each with one GPU per process of a cell.

    Args:
        devices: Devices, as `parse_devices` returns them. Each "cpu" is a slot, for any number of
            processes.
        processes: The number of processes of a cell.

    Raises:
        UserError: If the number of GPUs is not a multiple of `processes`.
    """
    if processes == 1 or devices[0] == "cpu":
        return tuple(devices)
    numbers = [device.removeprefix("cuda:") for device in devices]
    if len(numbers) % processes:
        enough = -(-len(numbers) // processes) * processes
        raise UserError(
            f"--devices {','.join(numbers)} names {_gpus(len(numbers))}, but each run takes "
            f"{processes} (--processes); name {enough}"
        )
    groups = (numbers[at : at + processes] for at in range(0, len(numbers), processes))
    return tuple(f"cuda:{','.join(group)}" for group in groups)


def at_once(threads: int, cells: int) -> int:
    """Return how many cells the cores of this machine can train at a time, at least 1.

    Args:
        threads: The threads of a cell, with its loader workers.
        cells: The number of cells.
    """
    return max(1, min(cells, processors() // threads))


def as_seen_inside(slot: str) -> tuple[str, dict[str, str]]:
    """Return the value of `--device` for a cell in `slot`, and the environment variables it needs.

    The processes of a cell use the first GPUs that they see. For a slot of several GPUs,
    CUDA_VISIBLE_DEVICES therefore lists only the GPUs of the slot.
    """
    kind, _, numbers = slot.partition(":")
    if "," not in numbers:
        return slot, {}
    chosen = [int(number) for number in numbers.split(",")]
    # The numbers are indices into the GPUs that this process sees. If CUDA_VISIBLE_DEVICES is set,
    # these can be other GPUs of the machine, or can have identifiers instead of numbers.
    outer = os.environ.get(_VISIBLE)
    names = numbers.split(",") if outer is None else [outer.split(",")[index] for index in chosen]
    return kind, {_VISIBLE: ",".join(names)}


def refuse_too_few(device: str, processes: int, gpus: int) -> None:
    """Refuse a device with too few GPUs for the processes of a cell.

    Args:
        device: The device of all cells, if `--devices` is not given.
        processes: The number of processes of a cell.
        gpus: The number of GPUs that torch sees.

    Raises:
        UserError: If the device is a single GPU, or if there are fewer GPUs than processes.
    """
    if processes == 1 or not device.startswith("cuda"):
        return
    if ":" in device:
        raise UserError(
            f"device is {device!r}, but each of {processes} processes takes a GPU of its own; "
            "write --device cuda, or --devices with the numbers of the GPUs"
        )
    if processes > gpus:
        raise UserError(
            f"--processes is {processes}, but torch sees {_gpus(gpus)} here; write --processes "
            f"{gpus}, or --device cpu"
        )


def _gpus(count: int) -> str:
    return counted(count, "GPU")
