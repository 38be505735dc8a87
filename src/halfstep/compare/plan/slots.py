"""A slot of this machine: where one cell at a time runs, on as many devices as it has processes.

Slots are text: "cpu", "cuda:1", "cuda:0,1" for two GPUs, "cuda" for the first ones that there are.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.plurals import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def deal_out(devices: Sequence[str], processes: int) -> tuple[str, ...]:
    """Make slots of devices: as many GPUs in each as a cell has processes.

    Args:
        devices: As `parse_devices` returns them. Each "cpu" is a slot, whatever runs in it.
        processes: Processes of a cell.

    Raises:
        UserError: If GPUs are left over.
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


def as_seen_inside(slot: str) -> tuple[str, dict[str, str]]:
    """Return what a cell in `slot` calls its device, and the variables that make it so.

    Several processes take the GPUs that they see, from the first on: they see those of the slot.
    """
    kind, _, numbers = slot.partition(":")
    if "," not in numbers:
        return slot, {}
    chosen = [int(number) for number in numbers.split(",")]
    # This process's own first GPU may be any of the machine's, or have a name instead of a number.
    outer = os.environ.get(_VISIBLE)
    names = numbers.split(",") if outer is None else [outer.split(",")[each] for each in chosen]
    return kind, {_VISIBLE: ",".join(names)}


def refuse_too_few(device: str, processes: int, gpus: int) -> None:
    """Refuse a device that cells of several processes do not fit on.

    Args:
        device: Of all cells, without `--devices`.
        processes: Processes of a cell.
        gpus: How many GPUs there are.

    Raises:
        UserError: If it is one GPU, or there are too few.
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
