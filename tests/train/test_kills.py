"""Real processes, really killed: what the disk holds afterwards is all that a resume has."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from halfstep.train import checkpoint, rotation
from halfstep.train.loop import train

RECIPES = ("fp32", "fp16", "o2")
KILLS = 20
# A run has 18 micro-batches and writes a checkpoint after steps 2, 3, 4, 6, 8 and 9.
MOMENTS = {"backward": 18, "write": 6, "link": 4}
SCRIPT = Path(__file__).with_name("killed.py")


def kill(config, run, recipe, moment, count):
    """Train in a process of its own that dies at a moment."""
    done = subprocess.run(
        [sys.executable, SCRIPT, config, run, recipe, "2", moment, str(count)],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def final(run):
    return checkpoint.load(checkpoint.path(run, "last"))


def same(first, second):
    return first.keys() == second.keys() and all(first[n].equal(second[n]) for n in first)


@pytest.fixture(scope="module")
def wholes(pictures, tmp_path_factory):
    runs = {}

    def whole(recipe):
        if recipe not in runs:
            run = tmp_path_factory.mktemp("whole")
            train(pictures(recipe=recipe), run, quiet=True)
            runs[recipe] = final(run)
        return runs[recipe]

    return whole


def test_killed_process_is_resumed_by_the_command_line(pictures_file, wholes, tmp_path):
    kill(pictures_file, tmp_path, "o2", "backward", 11)
    newest = checkpoint.load(rotation.newest_first(tmp_path)[0])
    assert (newest.epoch, newest.batch, newest.step) == (1, 2, 4)
    command = [sys.executable, "-m", "halfstep", "train", pictures_file, "--recipe", "o2"]
    done = subprocess.run(
        [*command, "--out", tmp_path, "--resume", "auto", "--quiet"],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert same(final(tmp_path).model, wholes("o2").model)
    assert same(final(tmp_path).averaged, wholes("o2").averaged)


@pytest.mark.slow
def test_twenty_random_kills_leave_no_trace(
    pictures, pictures_file, wholes, tmp_path, write_results
):
    chance = random.Random(0)
    rows = []
    for number in range(KILLS):
        recipe = RECIPES[number % len(RECIPES)]
        moment = chance.choice(sorted(MOMENTS))
        count = chance.randint(1, MOMENTS[moment])
        run = tmp_path / str(number)
        kill(pictures_file, run, recipe, moment, count)
        left = rotation.newest_first(run)
        began = checkpoint.load(left[0]).step if left else 0
        train(pictures(recipe=recipe), run, quiet=True, go_on="auto")
        stored, whole = final(run), wholes(recipe)
        rows.append(
            {
                "recipe": recipe,
                "killed": f"{moment} {count}",
                "resumed_at_step": began,
                "equal": same(stored.model, whole.model) and same(stored.averaged, whole.averaged),
            }
        )
        shutil.rmtree(run)
    write_results("kills.json", {"kills": rows})
    assert [row for row in rows if not row["equal"]] == []


@pytest.mark.slow
def test_full_tmpfs_loses_no_checkpoint_and_no_run(pictures, wholes, tmp_path):
    disk = tmp_path / "run"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        with pytest.warns(rotation.CheckpointWarning, match="No space left on device"):
            summary = train(pictures(), disk, quiet=True)
        assert summary.status == "finished"
        newest = rotation.newest_whole(disk)
        assert newest is not None
        assert newest[1].step < 9
    finally:
        subprocess.run(["umount", disk], check=True)
