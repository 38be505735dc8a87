"""`halfstep.train`: what the command does, from Python."""

from pathlib import Path

import pytest

import halfstep
from halfstep.train.store import checkpoint
from halfstep.train.store.run_directory import read_summary

SHORT = {"epochs": 1, "schedule.name": "constant"}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_is_the_commands_run(tiny_file, tmp_path, finished_run):
    summary = halfstep.train(tiny_file, quiet=True)
    run = tmp_path / "runs" / "tiny" / "fp32-seed0"
    assert read_summary(run)["final_accuracy"] == summary.final_accuracy
    theirs = read_summary(finished_run)
    assert (summary.final_val_loss, summary.steps) == (theirs["final_val_loss"], theirs["steps"])


def test_overrides_are_by_dotted_name_and_of_python(tiny_file):
    overrides = {**SHORT, "optimizer.lr": 1e-05, "recipe": "fp16", "early_stopping": None}
    halfstep.train(tiny_file, overrides=overrides, out="run", quiet=True)
    stored = checkpoint.load(checkpoint.path(Path("run"), "last")).config
    assert (stored["optimizer"]["lr"], stored["recipe"]) == (1e-05, "fp16")


def test_a_mapping_is_a_config_and_may_have_a_base(tiny, tiny_file):
    from_mapping = halfstep.train(
        {"base": str(tiny_file), "name": "mine", "epochs": 1}, quiet=True, out="mapping"
    )
    assert (from_mapping.config, from_mapping.epochs) == ("mine", 1)
    from_config = halfstep.train(tiny("epochs=1"), quiet=True, out="config")
    assert from_config.final_val_loss == from_mapping.final_val_loss


def test_a_run_goes_on_and_is_watched(tiny_file):
    class Steps(halfstep.Observer):
        def __init__(self):
            self.seen = []

        def stepped(self, step, result):
            self.seen.append(step)

    halfstep.train(tiny_file, overrides=SHORT, out="run", quiet=True)
    longer, steps = {**SHORT, "epochs": 2}, Steps()
    summary = halfstep.train(
        tiny_file, overrides=longer, out="run", quiet=True, resume="auto", observers=[steps]
    )
    assert summary.epochs == 2
    assert steps.seen == [7, 8, 9, 10, 11, 12]
    with pytest.raises(ValueError, match=r"write --resume auto to continue|--overwrite"):
        halfstep.train(tiny_file, overrides=longer, out="run", quiet=True)


@pytest.mark.parametrize(
    ("config", "overrides", "said"),
    [
        ("digit", {}, "no config is named 'digit'.*did you mean 'digits'"),
        ({"epochs": 1}, {}, "config: batch_size is missing"),
        ("digits", {"optimizer.rate": 1}, "optimizer.rate"),
    ],
)
def test_a_mistake_is_a_value_error_in_a_line(config, overrides, said):
    with pytest.raises(ValueError, match=said) as caught:
        halfstep.train(config, overrides=overrides)
    assert "\n" not in str(caught.value)


def test_the_package_is_still_a_package():
    from halfstep.train.loop import loop

    assert halfstep.train.loop.loop is loop
