"""What the processes found, one spawn for each number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import warm

from . import processes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where processes leave what they found, and their checkpoints."""
    return tmp_path_factory.mktemp("processes")


def spawned(directory: Path, world: int, names: list[str]) -> dict[str, str]:
    """Run checks in `world` processes; return what was wrong with each, on any of them."""
    run = (world, str(directory), names)
    start_method = warm.CONTEXT.get_start_method()
    torch.multiprocessing.start_processes(processes.main, run, world, start_method=start_method)
    wrong: dict[str, str] = dict.fromkeys(names, "")
    for rank in range(world):
        found = torch.load(directory / f"{world}-{rank}.pt", weights_only=True)
        for name in names:
            said = found.get(name, "was not reached, as a check before it failed")
            wrong[name] += f"rank {rank}: {said}" if said else ""
    return wrong


@pytest.fixture(scope="session")
def two(directory: Path) -> dict[str, str]:
    """What was wrong in two processes."""
    return spawned(directory, 2, processes.checks(2))


@pytest.fixture(scope="session")
def four(directory: Path, two: dict[str, str]) -> dict[str, str]:
    """What was wrong in four processes, which read checkpoints of two."""
    assert two
    return spawned(directory, 4, processes.checks(4))


@pytest.fixture(scope="session")
def at_length(directory: Path) -> dict[int, dict[str, str]]:
    """What was wrong with what takes long, in two and in four processes."""
    where = directory / "at_length"
    return {world: spawned(where, world, processes.more_checks(world)) for world in (2, 4)}
