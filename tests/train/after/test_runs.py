import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from halfstep.errors import UserError
from halfstep.train.after.runs import find
from halfstep.train.store.run_directory import read_summary


@pytest.fixture
def root(finished_run, tmp_path):
    """A folder with a finished run, one that was killed, a damaged one, and no run at all."""
    for name in ("digits/a", "digits/killed", "digits/broken"):
        shutil.copytree(finished_run, tmp_path / name)
    (tmp_path / "digits" / "killed" / "summary.json").unlink()
    with (tmp_path / "digits" / "killed" / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"kind": "val", "epoch": 3, "step": 18, "accuracy": 0.99}) + "\n")
        lines.write(json.dumps({"kind": "val", "epoch": 4, "step": 24, "accuracy": "nan"}) + "\n")
        lines.write('{"kind": "val", "epo')
    (tmp_path / "digits" / "broken" / "summary.json").write_text("{")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text("epochs: 3\n")
    return tmp_path


def test_runs_are_told_from_their_directories(root, finished_run):
    broken, finished, killed = sorted(find(root), key=lambda run: run.status)
    summary = read_summary(finished_run)
    assert finished.path == root / "digits" / "a"
    assert (finished.status, finished.tag, finished.seed) == ("finished", "small", 0)
    assert (finished.recipe, finished.epochs, finished.planned_epochs) == ("fp32", 2, 2)
    assert finished.best_accuracy == summary["best_accuracy"]
    assert finished.best_epoch == summary["best_epoch"]
    assert finished.final_accuracy == summary["final_accuracy"]
    assert (killed.status, killed.best_accuracy, killed.best_epoch) == ("unfinished", 0.99, 3)
    assert (killed.epochs, killed.planned_epochs) == (3, 2)
    assert (broken.path.name, broken.status) == ("broken", "damaged")


def test_when_is_the_last_time_that_the_run_wrote(root):
    run = root / "digits" / "a"
    for file in run.iterdir():
        os.utime(file, (0, 0))
    os.utime(run / "metrics.jsonl", (1000, 1000))
    assert find(run)[0].when == datetime.fromtimestamp(1000, UTC)


def test_a_folder_without_runs_has_none_and_no_folder_is_refused(tmp_path):
    assert find(tmp_path) == []
    with pytest.raises(
        UserError, match=r"nowhere' is not a folder; write a folder that contains runs"
    ):
        find(tmp_path / "nowhere")


def test_listing_runs_does_not_import_torch():
    program = "import sys, halfstep.train.after.runs; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
