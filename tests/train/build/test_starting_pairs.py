"""Two runs that start in one directory at once: one trains, the other is refused."""

import json

import pytest
import starting_pairs
from sameness import assert_same_run

import warm
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint
from halfstep.yaml_text import parse

PAIRS = 50


@pytest.mark.parametrize("count", [2, pytest.param(PAIRS, marks=pytest.mark.slow)])
def test_of_two_runs_at_once_one_trains_and_nothing_is_mixed(
    pictures, pictures_file, tmp_path, count
):
    alone = [tmp_path / f"alone-{seed}" for seed in (0, 1)]
    for seed, run in enumerate(alone):
        train(pictures(seed=seed), run, quiet=True)
    done = warm.run(starting_pairs.pairs, str(pictures_file), tmp_path, count, 0)
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert len(rows) == count
    for number, row in enumerate(rows):
        run, codes = tmp_path / str(number), row["exit_codes"]
        logs = [run.with_name(f"{number}-{seed}.log").read_text() for seed in (0, 1)]
        assert sorted(codes) == [0, 2], logs
        trained, refused = codes.index(0), codes.index(2)
        held = "is in use: process" in logs[refused]
        assert held or "holds a finished run of another config" in logs[refused], logs
        assert_same_run(run, alone[trained], of_one_process=False)
        assert parse((run / "config.yaml").read_text(), "config")["seed"] == trained
        for name in ("best", "last"):
            assert checkpoint.load(checkpoint.path(run, name)).config["seed"] == trained
