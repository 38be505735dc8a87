"""Real processes, really killed: what the disk holds afterwards is all that a resume has."""

import random
import shutil
import signal

import file_systems
import killed
import pytest
from sameness import same

import warm
from halfstep.errors import UserError
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint, rotation

RECIPES = ("fp32", "fp16", "o2")
KILLS = 100  # of which 60 while checkpoints are written in the background
# A run has 18 micro-batches and writes a checkpoint after steps 2, 3, 4, 6, 8 and 9.
MOMENTS = {"backward": 18, "write": 6, "link": 4}
IN_BACKGROUND = {**MOMENTS, "piece": 6 * 800}


def kill(config, run, recipe, moment, count, workers=2, in_background=False):
    """Train in a process of its own that dies at a moment."""
    ended = warm.run(killed.main, config, run, recipe, workers, moment, count, in_background)
    assert ended.code == -signal.SIGKILL, ended.err


def final(run):
    return checkpoint.load(checkpoint.path(run, "last"))


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
    again = ("train", pictures_file, "--recipe", "o2", "--resume", "auto", "--quiet")
    ended = warm.run(warm.halfstep, *again, "--out", tmp_path)
    assert ended.code == 0, ended.err
    assert same(final(tmp_path).model, wholes("o2").model)
    assert same(final(tmp_path).averaged, wholes("o2").averaged)


def test_workers_of_a_process_that_is_killed_while_they_hand_images_over_say_nothing(
    pictures_file, tmp_path
):
    ended = warm.run(killed.main, pictures_file, tmp_path / "run", "fp32", 2, "receive", 5)
    assert ended == (-signal.SIGKILL, "", "")


@pytest.mark.slow
def test_random_kills_leave_no_trace(pictures, pictures_file, wholes, tmp_path):
    chance = random.Random(0)
    rows = []
    for number in range(KILLS):
        recipe = RECIPES[number % len(RECIPES)]
        in_background = number % 5 > 1
        moments = IN_BACKGROUND if in_background else MOMENTS
        moment = chance.choice(sorted(moments))
        count = chance.randint(1, moments[moment])
        run = tmp_path / str(number)
        kill(pictures_file, run, recipe, moment, count, 0, in_background)
        left = rotation.newest_first(run)
        began = checkpoint.load(left[0]).step if left else 0
        train(pictures(recipe=recipe), run, quiet=True, go_on="auto")
        stored, whole = final(run), wholes(recipe)
        rows.append(
            {
                "recipe": recipe,
                "in_background": in_background,
                "killed": f"{moment} {count}",
                "resumed_at_step": began,
                "equal": same(stored.model, whole.model) and same(stored.averaged, whole.averaged),
            }
        )
        shutil.rmtree(run)
    assert [row for row in rows if not row["equal"]] == []


@pytest.mark.slow
def test_full_tmpfs_loses_no_checkpoint_and_no_run(pictures, wholes, tmp_path):
    disk, roomy = tmp_path / "run", tmp_path / "roomy"
    with file_systems.of_size(disk, "900k"):
        with (
            pytest.warns(rotation.CheckpointWarning, match="No space left on device"),
            pytest.raises(UserError, match="make room and write --resume auto"),
        ):
            train(pictures(recipe="fp32"), disk, quiet=True)
        newest = rotation.newest_whole(disk)
        assert newest is not None
        assert 0 < newest[1].step < 9
        shutil.copytree(disk, roomy)
    train(pictures(recipe="fp32"), roomy, quiet=True, go_on="auto")
    assert same(final(roomy).model, wholes("fp32").model)
