"""Runs checks in several gloo processes; one spawn serves many, as starting torch takes time."""

from __future__ import annotations

import inspect
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import warm

from . import checks_activations, checks_agreement, checks_ddp, checks_exceptions, checks_fsdp

MODULES = (checks_ddp, checks_agreement, checks_fsdp, checks_exceptions, checks_activations)
ONLY_OF_FOUR = "check_a_checkpoint_of_two_resumes_on_four"
OF_FOUR = [
    "check_uneven_batches_weigh_by_their_samples",
    "check_memory_falls_with_the_number_of_processes",
    ONLY_OF_FOUR,
]
"""What four processes check every time; the rest of it is left to long campaigns."""


AT_LENGTH = "check_follows_one_process_under_every_recipe"


def checks(world: int) -> list[str]:
    """The names of what so many processes check every time, in the order of the files."""
    if world == 4:
        return OF_FOUR
    return [name for name in _all() if name not in (ONLY_OF_FOUR, AT_LENGTH)]


def more_checks(world: int) -> list[str]:
    """The names of what they check in long campaigns."""
    return [AT_LENGTH] if world == 2 else [name for name in _all() if name not in OF_FOUR]


def _all() -> list[str]:
    return [name for module in MODULES for name in vars(module) if name.startswith("check_")]


def main(rank: int, world: int, directory: str, names: list[str]) -> None:
    """Run checks and save what was wrong with each, and how long it took."""
    warm.started()
    Path(directory).mkdir(exist_ok=True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory}/store{world}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    found: dict[str, str] = {}
    for name in names:
        check = next(getattr(module, name) for module in MODULES if hasattr(module, name))
        given = (
            {"directory": directory} if "directory" in inspect.signature(check).parameters else {}
        )
        try:
            check(rank, world, **given)
            wrong = ""
        except Exception:  # noqa: BLE001  (the test shows it)
            wrong = traceback.format_exc()
        found[name] = wrong
        torch.save(found, f"{directory}/{world}-{rank}.pt")
        if wrong:
            break  # the others wait for this process, and would wait in vain
    dist.destroy_process_group()
