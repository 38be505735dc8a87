import dataclasses
import math
import shutil
from pathlib import Path

import pytest
import torch

from halfstep.errors import UserError
from halfstep.train.after.evaluate import Evaluation, evaluate, evaluate_on
from halfstep.train.loop.loop import train
from halfstep.train.store import checkpoint
from halfstep.train.store.run_directory import read_summary
from halfstep.train.task.figures import Figures


@pytest.mark.parametrize("which", ["best", "last"])
def test_checkpoint_gives_what_the_run_recorded(finished_run, which):
    result = evaluate(finished_run, which)
    summary = read_summary(finished_run)
    name = "best_accuracy" if which == "best" else "final_accuracy"
    assert result.measured.accuracy == summary[name]
    assert result.measured.loss == result.recorded.loss
    assert result.matches


def test_a_run_with_a_batch_that_is_now_refused_is_still_evaluated(finished_run, tmp_path):
    run = shutil.copytree(finished_run, tmp_path / "run")
    config = run / "config.yaml"
    assert "batch_size: 256\n" in config.read_text()
    config.write_text(config.read_text().replace("batch_size: 256\n", "batch_size: 2000\n"))
    assert evaluate(run).measured.accuracy == evaluate(finished_run).measured.accuracy


def test_run_is_evaluated_under_its_own_recipe(tiny, tmp_path):
    train(tiny("epochs=1", recipe="bf16"), tmp_path, quiet=True)
    result = evaluate(tmp_path)
    assert result.measured.loss == result.recorded.loss
    assert result.matches


def test_changed_weights_do_not_match(tiny, tmp_path):
    train(tiny("epochs=1"), tmp_path, quiet=True)
    file = checkpoint.path(tmp_path, "last")
    stored = checkpoint.load(file)
    stored.model["fc.bias"][3] += 5
    checkpoint.save(file, dataclasses.replace(stored))
    assert not evaluate(tmp_path, "last").matches
    assert evaluate(tmp_path, "best").matches


def test_losses_match_to_rounding_and_accuracies_exactly():
    def matches(loss, accuracy):
        return Evaluation(Figures(loss, accuracy), Figures(0.5, 0.75), 1, "cpu").matches

    assert matches(0.5 * (1 + 1e-6), 0.75)
    assert not matches(0.5 * (1 + 1e-4), 0.75)
    assert not matches(0.5, 0.7501)
    both_nan = Evaluation(Figures(math.nan, 0.1), Figures(math.nan, 0.1), 1, "cpu")
    assert both_nan.matches


@pytest.mark.parametrize(
    ("make", "said"),
    [(None, "does not exist"), (Path.mkdir, r"holds no config\.yaml"), (Path.touch, "is a file")],
)
def test_what_is_no_run_is_refused(tmp_path, make, said):
    if make:
        make(tmp_path / "run")
    with pytest.raises(UserError, match=f"is not a run directory: it {said}; write"):
        evaluate(tmp_path / "run")


def test_run_without_a_finished_epoch_is_refused(tiny, tmp_path):
    train(tiny("optimizer.lr=1e30"), tmp_path, quiet=True)
    with pytest.raises(UserError, match="the run has finished no epoch"):
        evaluate(tmp_path)


def test_averaged_weights_are_what_is_evaluated(pictures_run):
    stored = checkpoint.load(checkpoint.path(pictures_run, "best"))
    assert stored.averaged is not None
    assert evaluate(pictures_run).matches


def test_data_that_moved_are_found_under_another_root(pictures, tmp_path):
    config = pictures("data.workers=0", "epochs=1")
    train(config, tmp_path / "run", quiet=True)
    moved = shutil.copytree(config.data.root, tmp_path / "moved here")
    shutil.rmtree(moved / "val" / "light")
    (moved / "val" / "light").mkdir()
    shutil.copy(next((moved / "train" / "light").iterdir()), moved / "val" / "light")
    there = evaluate(tmp_path / "run", root=moved)
    assert int(there.measured.confusion.sum()) == 4
    assert int(evaluate(tmp_path / "run").measured.confusion.sum()) == 6


def listed(config, rows):
    """Write a CSV file beside the pictures of a config's validation split."""
    file = Path(config.data.root) / "listed.csv"
    file.write_text("image,label\n" + "".join(f"{row}\n" for row in rows))
    return file


ROWS = [f"val/{name}/{index}.png,{name}" for name in ("dark", "light") for index in range(3)]


def test_images_of_a_csv_file_give_what_the_same_split_gives(pictures, pictures_run):
    result = evaluate_on(pictures_run, listed(pictures(), ROWS))
    own = evaluate(pictures_run)
    assert result.recorded is None
    assert result.matches is None
    assert result.measured.accuracy == own.measured.accuracy
    assert result.measured.loss == pytest.approx(own.measured.loss, rel=1e-6)
    assert torch.equal(result.measured.confusion, own.measured.confusion)


def test_image_that_cannot_be_read_is_named_and_the_others_count(pictures, pictures_run):
    broken = Path(pictures().data.root) / "broken.png"
    broken.write_bytes(b"no image")
    result = evaluate_on(pictures_run, listed(pictures(), ["broken.png,dark", *ROWS]))
    assert int(result.measured.confusion.sum()) == 6
    (line,) = result.unreadable
    assert "row 2: broken.png is not an image" in line
    with pytest.raises(UserError, match=r"lists no image that can be read; the first: .*row 2"):
        evaluate_on(pictures_run, listed(pictures(), ["broken.png,dark"]))
    broken.unlink()


def test_label_that_the_run_does_not_know_is_refused_by_row(pictures, pictures_run):
    file = listed(pictures(), [*ROWS, "val/dark/0.png,darc"])
    with pytest.raises(UserError, match=r"row 8: .*knows no class 'darc'.*did you mean 'dark'"):
        evaluate_on(pictures_run, file)
