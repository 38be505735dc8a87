"""What becomes of a step whose loss is not finite, in whole runs of which one batch is poisoned."""

import itertools
import json
import math
import signal

import pytest
import torch
from batches_left_out import leave_out

from engine.tiny import with_infinite_gradient
from halfstep.engine import Engine, EngineWarning
from halfstep.recipe import recipe as find_recipe
from halfstep.train.data import Data
from halfstep.train.loop.loop import train
from halfstep.train.observers import nonfinite
from halfstep.train.observers.nonfinite import NonFinite
from halfstep.train.run import restore
from halfstep.train.run.observer import Observer
from halfstep.train.run.signals import Stopped
from halfstep.train.store import checkpoint, rotation
from halfstep.train.store.run_directory import read_summary

RECIPES = ("fp32", "fp16", "o2")


@pytest.fixture
def poison(monkeypatch):
    """Make the images of some training batches, (epoch, number), inf."""

    def poisoned(*places, always_from=None):
        real = Data.prepare

        def prepare(self, images, labels, *, train, epoch=1, number=0, **rest):
            images, labels = real(
                self, images, labels, train=train, epoch=epoch, number=number, **rest
            )
            here = (epoch, number)
            if train and (here in places or (always_from and here >= always_from)):
                images = images * math.inf
            return images, labels

        monkeypatch.setattr(Data, "prepare", prepare)

    return poisoned


def losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def last(run):
    return checkpoint.load(checkpoint.path(run, "last"))


def same(first, second):
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("recipe", RECIPES)
def test_skip_leaves_the_step_out_whatever_the_recipe(tiny, tmp_path, poison, recipe, monkeypatch):
    poison((1, 2))
    config = tiny("on_nonfinite=skip", "log_every=1", "schedule.name=constant", recipe=recipe)
    summary = train(config, tmp_path / "skip", quiet=True)
    assert (summary.status, summary.skipped_steps, summary.steps) == ("finished", 1, 12)
    assert summary.first_nonfinite_step == 3
    assert losses(tmp_path / "skip")[2] == "nan"
    assert all(isinstance(loss, float) for loss in losses(tmp_path / "skip")[3:])
    # As if the batch had never been: weights, momentum, running statistics, loss scale.
    monkeypatch.undo()
    leave_out(monkeypatch, {(1, 2)})
    train(tiny("schedule.name=constant", recipe=recipe), tmp_path / "without", quiet=True)
    skipped, without = last(tmp_path / "skip"), last(tmp_path / "without")
    assert same(skipped.model, without.model)
    assert skipped.engine["scales"] == without.engine["scales"]


def test_skip_drops_the_whole_window_of_several_batches(tiny, tmp_path, poison):
    poison((1, 1))
    config = tiny("on_nonfinite=skip", "accumulate=3", "epochs=1", "log_every=1")
    summary = train(config, tmp_path, quiet=True)
    assert (summary.steps, summary.skipped_steps) == (2, 1)
    assert losses(tmp_path)[0] == "nan"
    assert math.isfinite(losses(tmp_path)[1])


def test_skip_gives_up_when_the_weights_are_to_blame(tiny, tmp_path, poison, monkeypatch):
    monkeypatch.setattr(nonfinite, "MOST_IN_A_ROW", 4)
    poison(always_from=(2, 1))
    summary = train(tiny("on_nonfinite=skip", "epochs=5"), tmp_path, quiet=True)
    assert (summary.status, summary.steps, summary.epochs) == ("nonfinite", 11, 1)
    assert "in 4 steps in a row, and on_nonfinite=skip skipped them" in summary.error
    assert read_summary(tmp_path)["status"] == "nonfinite"


def test_stop_lets_a_loss_scale_skip_and_ends_a_run_without_one(tiny, tmp_path, poison):
    poison((1, 2))
    stopped = train(tiny(), tmp_path / "fp32", quiet=True)
    assert (stopped.status, stopped.first_nonfinite_step) == ("nonfinite", 3)
    scaled = train(tiny(recipe="fp16"), tmp_path / "fp16", quiet=True)
    assert scaled.status == "finished"


@pytest.mark.parametrize(
    ("recipe", "scales", "bf16"),
    [("fp32", False, False), ("bf16", False, False), ("half", True, False), ("o2", False, True)],
)
def test_the_advice_fits_the_recipe(recipe, scales, bf16):
    said = nonfinite.remedy(find_recipe(recipe))
    assert ("scales the loss" in said) is scales
    assert ("recipe bf16" in said) is bf16
    assert "lower optimizer.lr" in said


def test_a_run_that_ends_gives_the_advice_of_its_recipe(tiny, tmp_path, poison, monkeypatch):
    poison(always_from=(1, 2))
    monkeypatch.setattr(nonfinite, "MOST_IN_A_ROW", 2)
    for recipe in ("fp32", "half"):
        for what in ("stop", "skip", "rollback"):
            config = tiny(f"on_nonfinite={what}", "epochs=2", recipe=recipe)
            error = train(config, tmp_path / recipe / what, quiet=True).error
            assert nonfinite.remedy(find_recipe(recipe)) in error


@pytest.mark.parametrize("recipe", RECIPES)
def test_rollback_returns_to_the_last_checkpoint_and_goes_on_after_the_batch(
    tiny, tmp_path, poison, recipe, monkeypatch
):
    seen = []
    real = restore.roll_back

    def roll_back(training):
        before = training.setup.engine.model.state_dict()
        before = {name: value.clone() for name, value in before.items()}
        real(training)
        seen.append((before, training.setup.engine.model.state_dict(), training.progress.batch))

    monkeypatch.setattr(restore, "roll_back", roll_back)
    poison((2, 3))
    config = tiny("on_nonfinite=rollback", "checkpoints.every_steps=2", recipe=recipe)
    summary = train(config, tmp_path / "run", quiet=True)
    assert (summary.status, summary.steps) == ("finished", 12)
    # The newest checkpoint is of step 8; steps 9 and 10 are gone, and batch 4 comes next.
    assert summary.skipped_steps == 2
    ((before, after, position),) = seen
    assert position == 4
    assert not same(before, after)
    # The same by hand: eight steps, then the batches after the bad one.
    monkeypatch.undo()
    leave_out(monkeypatch, {(2, 2), (2, 3)})
    train(tiny(recipe=recipe), tmp_path / "without", quiet=True)
    assert same(last(tmp_path / "run").model, last(tmp_path / "without").model)


def test_rollback_before_the_first_checkpoint_returns_to_the_start(tiny, tmp_path, poison):
    poison((1, 0))
    config = tiny("on_nonfinite=rollback", "epochs=1", "log_every=1")
    summary = train(config, tmp_path, quiet=True)
    assert (summary.status, summary.steps, summary.skipped_steps) == ("finished", 6, 1)


def test_rollback_ends_the_run_after_some_times(tiny, tmp_path, poison):
    poison(always_from=(1, 4))
    summary = train(tiny("on_nonfinite=rollback", "epochs=3"), tmp_path, quiet=True)
    assert summary.status == "nonfinite"
    assert "the loss was not finite again after 3 returns to a checkpoint" in summary.error
    assert (summary.steps, summary.first_nonfinite_step) == (8, 5)


def test_rollback_never_saves_weights_that_are_not_finite(tiny, tmp_path, monkeypatch):
    # A finite loss whose update overflows: found when the checkpoint is to be written.
    config = tiny("on_nonfinite=rollback", "epochs=1", "checkpoints.every_steps=1", "log_every=1")
    real = NonFinite.veto_checkpoint
    answers = []

    def veto_checkpoint(self):
        answers.append(None)
        if len(answers) == 3:
            next(self._training.setup.engine.model.parameters()).data.fill_(math.nan)
        return real(self)

    monkeypatch.setattr(NonFinite, "veto_checkpoint", veto_checkpoint)
    summary = train(config, tmp_path, quiet=True)
    assert (summary.status, summary.skipped_steps) == ("finished", 1)
    assert math.isfinite(summary.final_val_loss)


def test_a_signal_does_not_save_weights_that_are_not_finite(tiny, tmp_path):
    class Poison(Observer):
        def begin(self, training):
            self.training = training

        def step_done(self, result):
            if self.training.step == 3:
                next(self.training.setup.engine.model.parameters()).data.fill_(math.nan)
                signal.raise_signal(signal.SIGTERM)

    config = tiny("on_nonfinite=rollback", "epochs=1", "checkpoints.every_steps=2")
    with pytest.raises(Stopped, match=r"continues from step-00000002\.pt"):
        train(config, tmp_path, quiet=True, observers=[Poison()])
    state = checkpoint.load(rotation.newest_first(tmp_path)[0]).model
    assert all(bool(value.isfinite().all()) for value in state.values())


def test_statistics_of_compiled_code_are_put_back_too(tiny, tmp_path, poison, monkeypatch):
    """No hook runs in it, so the copy is made before it is entered."""
    poison((1, 2))

    def compiled(model):
        model.compile(backend="eager")
        return model

    monkeypatch.setattr("halfstep.train.build.models.compiled", compiled)
    monkeypatch.setattr("halfstep.train.build.compiling.PAYS_FROM", 0)
    config = tiny("on_nonfinite=skip", "epochs=1", "model.compile=true")
    train(config, tmp_path / "run", quiet=True)
    state = last(tmp_path / "run").model
    assert all(bool(value.isfinite().all()) for value in state.values())


@pytest.fixture
def burst(monkeypatch):
    """Make the gradients of some backward passes, counted from 0, inf; the losses stay finite."""

    def bursting(*numbers, always_from=math.inf):
        real, passes = Engine.backward, itertools.count()

        def backward(self, loss, **settings):
            number = next(passes)
            if number in numbers or number >= always_from:
                loss = with_infinite_gradient(loss)
            real(self, loss, **settings)

        monkeypatch.setattr(Engine, "backward", backward)

    return bursting


@pytest.mark.parametrize("recipe", ["fp32", "bf16"])
def test_skip_leaves_gradients_out_that_are_not_finite_though_the_loss_is(
    tiny, tmp_path, burst, recipe, monkeypatch
):
    burst(2)
    config = tiny("on_nonfinite=skip", "log_every=1", "schedule.name=constant", recipe=recipe)
    summary = train(config, tmp_path / "skip", quiet=True)
    assert (summary.status, summary.skipped_steps, summary.steps) == ("finished", 1, 12)
    assert summary.first_nonfinite_step == 3
    monkeypatch.undo()
    leave_out(monkeypatch, {(1, 2)})
    train(tiny("schedule.name=constant", recipe=recipe), tmp_path / "without", quiet=True)
    assert same(last(tmp_path / "skip").model, last(tmp_path / "without").model)


def test_stop_applies_gradients_that_are_not_finite_and_ends_the_run(tiny, tmp_path, burst):
    burst(2)
    summary = train(tiny("log_every=1"), tmp_path, quiet=True)
    assert (summary.status, summary.first_nonfinite_step, summary.skipped_steps) == (
        "nonfinite",
        4,
        0,
    )


def test_rollback_returns_after_gradients_that_are_not_finite(tiny, tmp_path, burst, monkeypatch):
    burst(4)
    config = tiny("on_nonfinite=rollback", "epochs=1", "checkpoints.every_steps=2")
    summary = train(config, tmp_path / "run", quiet=True)
    assert (summary.status, summary.steps, summary.skipped_steps) == ("finished", 6, 1)
    monkeypatch.undo()
    leave_out(monkeypatch, {(1, 4)})
    train(tiny("epochs=1"), tmp_path / "without", quiet=True)
    assert same(last(tmp_path / "run").model, last(tmp_path / "without").model)


def test_a_loss_scale_that_is_still_too_high_is_no_reason_to_roll_back(tiny, tmp_path, burst):
    burst(2, 3)
    config = tiny("on_nonfinite=rollback", "epochs=1", recipe="fp16")
    summary = train(config, tmp_path, quiet=True)
    assert (summary.status, summary.skipped_steps) == ("finished", 2)
    assert summary.first_nonfinite_step is None


def test_skip_gives_up_on_gradients_too_and_counts_across_a_resume(
    tiny, tmp_path, burst, monkeypatch
):
    monkeypatch.setattr(nonfinite, "MOST_IN_A_ROW", 5)
    burst(always_from=4)
    config = tiny("on_nonfinite=skip", "schedule.name=constant", "epochs=1")
    assert train(config, tmp_path, quiet=True).status == "finished"  # 2 skips of 6 steps
    config = tiny("on_nonfinite=skip", "schedule.name=constant", "epochs=5")
    with pytest.warns(EngineWarning, match="has skipped 3 steps in a row"):
        summary = train(config, tmp_path, quiet=True, go_on="auto")
    assert (summary.status, summary.steps, summary.skipped_steps) == ("nonfinite", 9, 5)
    assert "loss or gradients were not finite in 5 steps in a row" in summary.error
