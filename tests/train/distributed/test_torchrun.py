"""Jobs that torchrun starts, watches and restarts, as a user starts them."""

import json
import os
import random
import socket
import subprocess
import sys

import pytest
from sameness import same

import warm
from halfstep.train.store import checkpoint

from . import dying_worker

KILLS = 20
SHORT = ("max_steps=2", "epochs=1", "accumulate=1")
MICRO_BATCHES = 9
"""Of the three epochs of the pictures, in two processes."""


def started(command):
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10"},
    )


def torchrun(config, run, rank=-1, count=0, strategy="ddp"):
    """Train the pictures in two processes, of which one may die."""
    settings = ["--options", "accumulate=1", f"distributed.strategy={strategy}"]
    train = ["train", config, "--out", run, "--quiet", *settings]
    variables = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "10"}
    return warm.run(dying_worker.job, rank, count, *train, environment=variables)


def final(run):
    return checkpoint.load(checkpoint.path(run, "last"))


@pytest.fixture(scope="module")
def whole(pictures_file, tmp_path_factory):
    run = tmp_path_factory.mktemp("undisturbed")
    code, _, err = torchrun(pictures_file, run)
    assert code == 0, err
    return final(run)


def assert_no_trace(config, run, whole, rank, count, strategy="ddp"):
    code, out, err = torchrun(config, run, rank, count, strategy)
    assert code == 0, err
    assert out.count("run:") == 1
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["processes"], summary["epochs"]) == (2, 3)
    assert same(final(run).model, whole.model)
    assert same(final(run).averaged, whole.averaged)


def test_job_whose_worker_is_killed_ends_as_an_undisturbed_one(pictures_file, whole, tmp_path):
    assert_no_trace(pictures_file, tmp_path, whole, rank=1, count=6)


@pytest.mark.slow
def test_twenty_random_kills_leave_no_trace(pictures_file, whole, tmp_path):
    chance = random.Random(0)
    for number in range(KILLS):
        rank, count = chance.randrange(2), chance.randint(1, MICRO_BATCHES)
        assert_no_trace(pictures_file, tmp_path / str(number), whole, rank, count)


@pytest.mark.slow
def test_kills_leave_no_trace_where_each_worker_has_a_part_of_the_model(pictures_file, tmp_path):
    code, _, err = torchrun(pictures_file, tmp_path / "whole", strategy="fsdp")
    assert code == 0, err
    whole = final(tmp_path / "whole")
    for rank, count in ((0, 2), (1, 6), (0, 8)):
        run = tmp_path / f"{rank}-{count}"
        assert_no_trace(pictures_file, run, whole, rank, count, "fsdp")
        named = {path.name for path in (run / "checkpoints").glob("*") if path.is_dir()}
        kept = (run / "checkpoints").glob("*.pt")
        assert named == {checkpoint.named_parts(file)["directory"] for file in kept}


@pytest.mark.slow
def test_two_nodes_train_one_run(pictures_file, whole, tmp_path):
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    agents = [
        started(
            ["torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-id", "pictures",
             "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--local-addr",
             "localhost", "-m", "halfstep", "train", pictures_file, "--out", tmp_path, "--quiet",
             "--options", "accumulate=1"]
        )
        for _ in range(2)
    ]  # fmt: skip
    ends = [(agent.communicate(), agent.returncode) for agent in agents]
    assert [code for _, code in ends] == [0, 0], ends
    assert sorted(out.count("run:") for (out, _), _ in ends) == [0, 1]
    assert same(final(tmp_path).model, whole.model)


def test_processes_that_halfstep_starts_end_as_one(pictures_file, tmp_path):
    train = ["train", pictures_file, "--out", tmp_path, "--quiet", "--processes", 2]
    # What only the processes find out; and they are not started again for it.
    wrong = ["--max-restarts", 1, "--options", "model.name=timm:nothing"]
    code, out, err = warm.run(dying_worker.launch, *train, *wrong)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("error: model.name is 'timm:nothing'")
    code, out, err = warm.run(dying_worker.launch, *train, "--options", *SHORT)
    assert (code, err) == (0, "")
    assert out.count("run:") == 1
    assert json.loads((tmp_path / "environment.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_processes_that_are_no_forks_train(pictures_file, tmp_path):
    train = ["train", pictures_file, "--out", tmp_path, "--quiet", "--processes", 2]
    command = started(["halfstep", *train, "--options", *SHORT])
    out, err = command.communicate()
    assert (command.returncode, err, out.count("run:")) == (0, "", 1)
    assert json.loads((tmp_path / "environment.json").read_text())["processes"] == 2


def test_bad_config_is_one_line(pictures_file):
    train = ["train", pictures_file, "--processes", 2, "--options", "seed=a"]
    code, out, err = warm.run(dying_worker.launch, *train)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "seed" in err
