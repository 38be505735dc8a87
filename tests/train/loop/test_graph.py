"""A run with `graph: true` is the run without, bit for bit; a tape records in place of a GPU."""

import pytest
from sameness import assert_same_run

from engine.tape import TapeRecorder
from halfstep.engine.graphs import recorders
from halfstep.engine.misuse import EngineWarning
from halfstep.errors import UserError
from halfstep.train.loop.loop import train
from halfstep.train.run.microbatch import MicroBatches
from halfstep.train.run.observer import Observer

SGD = ("optimizer={name: sgd, lr: 0.05, momentum: 0.9}", "schedule={name: cosine}")


@pytest.fixture
def recorder(monkeypatch):
    made = TapeRecorder()
    monkeypatch.setattr(recorders, "new_recorder", lambda *_: lambda: made)
    return made


@pytest.mark.parametrize("recipe", ["fp16", "o2"])
def test_a_replayed_run_is_the_eager_one(recipe, pictures, tmp_path, monkeypatch):
    config = pictures(*SGD, recipe=recipe, graph=True)
    with pytest.warns(EngineWarning, match="run eagerly"):
        train(config, tmp_path / "eager", quiet=True)
    made = TapeRecorder()
    monkeypatch.setattr(recorders, "new_recorder", lambda *_: lambda: made)
    train(config, tmp_path / "replayed", quiet=True)
    assert len(made.tapes) == 2  # of the two micro-steps of a window
    assert_same_run(tmp_path / "eager", tmp_path / "replayed")


def test_a_replayed_run_resumes(pictures, tmp_path, recorder, monkeypatch):
    config = pictures(*SGD, "epochs=5", recipe="fp16", graph=True)
    train(config, tmp_path / "whole", quiet=True)
    real, left, tapes = MicroBatches.add, iter(range(17)), len(recorder.tapes)

    def add(self, images, labels):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(self, images, labels)

    monkeypatch.setattr(MicroBatches, "add", add)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "parts", quiet=True)
    monkeypatch.setattr(MicroBatches, "add", real)
    train(config, tmp_path / "parts", quiet=True, go_on="auto")
    assert len(recorder.tapes) == tapes + 4
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("options", [
    {"on_nonfinite": "skip"}, {"auto_microbatch": True}, {"probes": True},
])  # fmt: skip
def test_what_acts_between_backward_and_step_is_refused(options, pictures):
    with pytest.raises(UserError, match=f"graph is true, .* but {next(iter(options))} is"):
        pictures(graph=True, **options)


def test_an_observer_that_acts_before_the_step_is_refused(pictures, tmp_path):
    class Looks(Observer):
        def before_step(self, *, last):
            pass

    config = pictures(graph=True)
    with pytest.raises(UserError, match="has the hook before_step"):
        train(config, tmp_path / "run", quiet=True, observers=[Looks()])


def test_an_optimizer_that_cannot_be_replayed_is_refused(pictures, tmp_path):
    config = pictures("optimizer={name: lamb, lr: 0.01}", graph=True)
    with pytest.raises(UserError, match=r"graph is true, but .*Lamb is not known"):
        train(config, tmp_path / "run", quiet=True)
