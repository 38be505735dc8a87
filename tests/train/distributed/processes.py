"""Runs checks in gloo processes; one spawn serves all of them, as starting torch takes time."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch

import warm
from halfstep.train.processes.distributed import joined

from . import checks, checks_fsdp

MODULES = (checks, checks_fsdp)
THE_HANGING = "a_rank_that_hangs_is_named"
OF_FOUR = ["check_four_go_on_with_what_two_began"]
"""What four processes check of what two have left; the rest is for two."""


def names() -> list[str]:
    """What two processes check, in the order of the files."""
    found = [name for module in MODULES for name in vars(module) if name.startswith("check_")]
    return [*(name for name in found if name not in OF_FOUR), THE_HANGING]


def main(
    rank: int,
    names: list[str],
    world: int,
    ports: list[int],
    directory: str,
    left,
    tiny: str,
    pictures: str,
) -> None:
    """Run the checks, and save what was wrong with each."""
    warm.started()
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(ports[0]),
    }
    given = checks.Given(Path(directory), Path(tiny), Path(pictures), ports[1], left)
    found: dict[str, str] = {}

    def note(name: str, *arguments) -> None:
        check = next(getattr(module, name) for module in MODULES if hasattr(module, name))
        try:
            check(*arguments)
            found[name] = ""
        except BaseException:  # noqa: BLE001  (the test shows it)
            found[name] = traceback.format_exc()
        torch.save(found, f"{directory}/{world}-{rank}.pt")

    with joined("cpu", 60) as processes:
        for name in names:
            if name != THE_HANGING:
                note(name, processes, given)
                if found[name]:
                    os._exit(1)  # the others wait for this one, and would wait in vain
    if THE_HANGING in names:
        note(THE_HANGING, rank, given)
