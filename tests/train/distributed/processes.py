"""Runs checks in two gloo processes; one spawn serves all of them, as starting torch takes time."""

from __future__ import annotations

import os
import traceback
from pathlib import Path

import torch

from halfstep.train.distributed import joined

from . import checks

WORLD = 2


def names() -> list[str]:
    """The checks, in the order of their file."""
    return [name for name in vars(checks) if name.startswith("check_")]


def main(rank: int, ports: list[int], directory: str, left, tiny: str, pictures: str) -> None:
    """Run the checks, and save what was wrong with each."""
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(ports[0]),
    }
    given = checks.Given(Path(directory), Path(tiny), Path(pictures), ports[1], left)
    found: dict[str, str] = {}
    with joined("cpu", 60) as processes:
        for name in names():
            try:
                getattr(checks, name)(processes, given)
                found[name] = ""
            except BaseException:  # noqa: BLE001  (the test shows it)
                found[name] = traceback.format_exc()
            torch.save(found, f"{directory}/{rank}.pt")
            if found[name]:
                os._exit(1)  # the other waits for this one, and would wait in vain
    name = "a_rank_that_hangs_is_named"
    try:
        checks.a_rank_that_hangs_is_named(rank, given)
        found[name] = ""
    except BaseException:  # noqa: BLE001  (the test shows it)
        found[name] = traceback.format_exc()
    torch.save(found, f"{directory}/{rank}.pt")
