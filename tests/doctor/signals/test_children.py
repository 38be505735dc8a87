"""Under `halfstep doctor`, the processes that a program starts are watched, too."""

from __future__ import annotations

import json
import tempfile
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import warm
from halfstep.doctor import Watch
from halfstep.doctor.__main__ import main

if TYPE_CHECKING:
    from pathlib import Path

TRAINS = r"""
import multiprocessing
import os
import sys
import torch
from torch import nn


def work(rank, bad):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        images = torch.randn(8, 4)
        if bad and (rank == 1 or sys.argv[1] == "spawn") and number == 3:
            images[2, 1] = float("nan")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.randint(2, (8,))).backward()
        optimizer.step()
    # One write: two processes share the pipe.
    os.write(1, f"rank {rank} ends\n".encode())


if __name__ == "__main__":
    how, bad = sys.argv[1], sys.argv[2] == "bad"
    if how == "spawn":
        torch.multiprocessing.spawn(work, args=(bad,), nprocs=1)
    else:
        context = multiprocessing.get_context(how)
        started = [context.Process(target=work, args=(rank, bad)) for rank in range(2)]
        for each in started:
            each.start()
        for each in started:
            each.join()
"""


def doctor(folder: Path, *arguments: str) -> int:
    """Be `python -m halfstep.doctor`."""
    tempfile.tempdir = str(folder)
    return main(["--report", str(folder / "report"), str(folder / "trains.py"), *arguments])


def diagnosis_of(tmp_path, *arguments: str) -> tuple[dict, str]:
    (tmp_path / "trains.py").write_text(TRAINS)
    ended = warm.Warm(doctor, tmp_path, *arguments).wait(300)
    assert ended.code == 0, ended.err
    ends = ["rank 0 ends"] if "spawn" in arguments else ["rank 0 ends", "rank 1 ends"]
    assert sorted(ended.out.splitlines())[-len(ends) :] == ends
    return json.loads((tmp_path / "report" / "diagnosis.json").read_text()), ended.err


@pytest.mark.parametrize("how", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_the_cause_in_one_child_is_named(tmp_path, how) -> None:
    _, said = diagnosis_of(tmp_path, how, "bad")
    assert "CORRUPT_BATCH" in said
    assert "in child process" in said
    assert "no optimizer made a step" not in said
    assert not list(tmp_path.glob("halfstep-children-*"))


def test_healthy_children_get_no_cause(tmp_path) -> None:
    evidence, said = diagnosis_of(tmp_path, "fork", "good")
    assert "doctor: nothing found" in said
    assert "no optimizer made a step" not in said
    assert len(evidence["evidence"]["children"]) == 2


def test_workers_of_a_data_loader_are_left_alone() -> None:
    data = TensorDataset(torch.ones(8, 2))
    with Watch(children=True) as watch:
        assert len(list(DataLoader(data, 4, num_workers=1))) == 2
    assert watch.close().children == ()
