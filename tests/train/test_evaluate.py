import dataclasses
import math
from pathlib import Path

import pytest

from halfstep.errors import UserError
from halfstep.train import checkpoint
from halfstep.train.evaluate import Evaluation, evaluate
from halfstep.train.loop import train
from halfstep.train.run_directory import read_summary
from halfstep.train.validate import Figures


@pytest.mark.parametrize("which", ["best", "last"])
def test_checkpoint_gives_what_the_run_recorded(finished_run, which):
    result = evaluate(finished_run, which)
    summary = read_summary(finished_run)
    name = "best_accuracy" if which == "best" else "final_accuracy"
    assert result.measured.accuracy == summary[name]
    assert result.measured == result.recorded
    assert result.matches


def test_run_is_evaluated_under_its_own_recipe(tiny, tmp_path):
    train(tiny("epochs=1", recipe="bf16"), tmp_path, quiet=True)
    result = evaluate(tmp_path)
    assert result.measured == result.recorded


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
    with pytest.raises(UserError, match=f"is no run directory: it {said}; write"):
        evaluate(tmp_path / "run")


def test_run_without_a_finished_epoch_is_refused(tiny, tmp_path):
    train(tiny("optimizer.lr=1e30"), tmp_path, quiet=True)
    with pytest.raises(UserError, match="the run has finished no epoch"):
        evaluate(tmp_path)
