"""Under `halfstep doctor`, the processes that a program starts are watched, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

from halfstep.doctor import Watch

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
        if bad and rank == 1 and number == 3:
            images[2, 1] = float("nan")
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.randint(2, (8,))).backward()
        optimizer.step()
    # One write: two processes share the pipe.
    os.write(1, f"rank {rank} ends\n".encode())


if __name__ == "__main__":
    how, bad = sys.argv[1], sys.argv[2] == "bad"
    if how == "spawn":
        torch.multiprocessing.spawn(work, args=(bad,), nprocs=2)
    else:
        context = multiprocessing.get_context(how)
        started = [context.Process(target=work, args=(rank, bad)) for rank in range(2)]
        for each in started:
            each.start()
        for each in started:
            each.join()
"""


def diagnosis_of(tmp_path, *arguments: str) -> tuple[dict, str]:
    (tmp_path / "trains.py").write_text(TRAINS)
    command = [sys.executable, "-m", "halfstep.doctor", "--report", str(tmp_path / "report")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [*command, str(tmp_path / "trains.py"), *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert sorted(done.stdout.splitlines())[-2:] == ["rank 0 ends", "rank 1 ends"]
    return json.loads((tmp_path / "report" / "diagnosis.json").read_text()), done.stderr


def test_the_cause_in_one_child_is_named(tmp_path) -> None:
    _, said = diagnosis_of(tmp_path, "spawn", "bad")
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
