import json
import os
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from halfstep.errors import UserError
from halfstep.train.observers import sinks

PICTURE = torch.arange(48, dtype=torch.uint8).reshape(3, 4, 4)
SETTINGS = {"epochs": 2, "model": {"name": "x", "args": {}}}
FLAT = {"epochs": 2, "model.name": "x", "model.args": {}}


def fake(monkeypatch, name, **functions):
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in for the package that keeps what it is told."""
    pytest.importorskip("accelerate")
    seen = SimpleNamespace(given=None, logged=[], settings={}, finished=False)

    def init(**given):
        seen.given = given
        return SimpleNamespace(
            id=given.get("id", "made-up"),
            log=lambda values, step: seen.logged.append((step, values)),
            finish=lambda: setattr(seen, "finished", True),
        )

    config = SimpleNamespace(update=lambda values, allow_val_change: seen.settings.update(values))
    fake(monkeypatch, "wandb", init=init, config=config, Image=lambda pixels: pixels.shape)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return seen


@pytest.fixture
def mlflow(monkeypatch):
    """A stand-in for the package that keeps what it is told."""
    pytest.importorskip("accelerate")
    seen = SimpleNamespace(experiment=None, started=None, params={}, logged=[], images=[], ended=0)

    def start_run(**given):
        seen.started = given
        return SimpleNamespace(info=SimpleNamespace(run_id=given["run_id"] or "made-up"))

    limits = SimpleNamespace(MAX_PARAM_VAL_LENGTH=500, MAX_PARAMS_TAGS_PER_BATCH=100)
    fake(
        monkeypatch,
        "mlflow",
        utils=SimpleNamespace(validation=limits),
        search_experiments=lambda filter_string: [],
        create_experiment=lambda name, **_: setattr(seen, "experiment", name),
        start_run=start_run,
        log_params=seen.params.update,
        log_metrics=lambda values, step: seen.logged.append((step, values)),
        log_image=lambda pixels, artifact_file: seen.images.append((artifact_file, pixels.shape)),
        end_run=lambda: setattr(seen, "ended", seen.ended + 1),
    )
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return seen


def record(run, names, resumed_at=None):
    built = sinks.build(names, run, title="digits", settings=SETTINGS, resumed_at=resumed_at)
    for sink in built:
        sink.scalars({"train/loss": 0.5}, 10)
        sink.picture("val/samples", PICTURE, 10)
        sink.close()
    return built


def test_tensorboard_has_figures_and_pictures(tmp_path):
    record(tmp_path, ["tensorboard"])
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(each.step, each.value) for each in events.Scalars("train/loss")] == [(10, 0.5)]
    (image,) = events.Images("val/samples")
    assert (image.step, image.width, image.height) == (10, 4, 4)


def test_figures_of_many_steps_keep_their_times_though_they_are_written_together(
    tmp_path, monkeypatch
):
    sink = sinks.TensorBoard(tmp_path, None)
    for step in (1, 2, 3):
        monkeypatch.setattr(sinks.time, "time", lambda step=step: 100.0 + step)
        sink.scalars({"train/loss": step / 2, "train/lr": 0.1}, step)
    monkeypatch.undo()
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    seen = [(each.wall_time, each.step, each.value) for each in events.Scalars("train/loss")]
    assert seen == [(101.0, 1, 0.5), (102.0, 2, 1.0), (103.0, 3, 1.5)]
    assert len(events.Scalars("train/lr")) == 3


def test_what_a_resumed_run_writes_again_stands_once_in_tensorboard(tmp_path):
    for resumed_at, value in ((None, 0.5), (5, 0.25)):
        sink = sinks.TensorBoard(tmp_path, resumed_at)
        sink.scalars({"train/loss": value}, 5 if resumed_at is None else 10)
        sink.scalars({"train/loss": value}, 10)
        sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    values = [(each.step, each.value) for each in events.Scalars("train/loss")]
    assert values[0] == (5, 0.5)
    assert (10, 0.5) not in values


def test_wandb_gets_config_figures_and_pictures(tmp_path, wandb):
    record(tmp_path, ["wandb"])
    assert wandb.settings == FLAT
    assert wandb.given == {"name": "digits", "project": "halfstep"}
    assert wandb.logged == [(10, {"train/loss": 0.5}), (10, {"val/samples": [(4, 4, 3)]})]
    assert wandb.finished


def test_mlflow_gets_config_figures_and_pictures(tmp_path, mlflow):
    record(tmp_path, ["mlflow"])
    assert mlflow.experiment == "halfstep"
    assert mlflow.params == FLAT
    assert mlflow.logged == [(10, {"train/loss": 0.5})]
    assert mlflow.images == [("val/samples-00000010.png", (4, 4, 3))]
    assert mlflow.ended == 1


def test_run_that_goes_on_is_the_same_run_there(tmp_path, wandb, mlflow):
    record(tmp_path, ["wandb", "mlflow"])
    assert json.loads((tmp_path / "tracking.json").read_text()) == {
        "wandb": "made-up",
        "mlflow": "made-up",
    }
    mlflow.params.clear()
    record(tmp_path, ["wandb", "mlflow"], resumed_at=10)
    assert wandb.given["id"] == mlflow.started["run_id"] == "made-up"
    assert wandb.given["resume"] == "allow"
    assert mlflow.params == {}
    record(tmp_path, ["wandb", "mlflow"])
    assert "id" not in wandb.given
    assert mlflow.started["run_id"] is None


@pytest.mark.parametrize(
    ("name", "module", "attributes"),
    [
        ("swanlab", "swanlab", {"init": "id"}),
        ("trackio", "trackio", {"init": "name"}),
        ("comet", "comet_ml", {"start": "get_key"}),
        ("clearml", "clearml", {"Task": "id"}),
    ],
)
def test_other_services_know_a_run_again(tmp_path, monkeypatch, name, module, attributes):
    pytest.importorskip("accelerate")
    given = []

    def start(**named):
        given.append(named)
        run = MagicMock(id="made-up", get_key=lambda: "made-up")
        run.name = "made-up"  # MagicMock has a name of its own
        return run

    task = SimpleNamespace(current_task=lambda: None, init=start)
    functions = {each: task if each == "Task" else start for each in attributes}
    fake(
        monkeypatch,
        module,
        **functions,
        config=MagicMock(),
        Image=MagicMock(),
        __version__="9",
        finish=MagicMock(),
    )
    record(tmp_path, [name])
    record(tmp_path, [name], resumed_at=10)
    new, again = given
    assert "made-up" not in new.values()
    assert "made-up" in again.values()


def test_accelerate_sees_one_process_and_the_environment_stays(monkeypatch, tmp_path, wandb):
    from accelerate import PartialState

    for variable, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(variable, value)
    PartialState._reset_state()
    record(tmp_path, ["wandb"])
    assert (PartialState().num_processes, os.environ["WORLD_SIZE"]) == (1, "2")
    assert not torch.distributed.is_initialized()
    assert wandb.finished


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_missing_package_is_one_line_that_says_what_to_install(tmp_path, monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match=rf"names '{name}'.*pip install 'halfstep\[{name}\]'"):
        record(tmp_path, ["tensorboard", name])


@pytest.mark.parametrize("breaks", ["init", "log"])
def test_service_that_fails_is_warned_of_once_and_the_rest_goes_on(tmp_path, monkeypatch, breaks):
    def fail(*_, **__):
        raise ConnectionError("no route\nto host")

    pytest.importorskip("accelerate")
    run = SimpleNamespace(id="x", log=fail, finish=fail)
    config = SimpleNamespace(update=lambda *_, **__: None)
    init = fail if breaks == "init" else lambda **_: run
    fake(monkeypatch, "wandb", init=init, config=config, Image=fail)
    with pytest.warns(sinks.TrackingWarning) as caught:
        record(tmp_path, ["wandb", "tensorboard"])
    (warning,) = caught
    assert "wandb gets no more figures of this run: ConnectionError: no route to host" in str(
        warning.message
    )
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Scalars("train/loss")


def test_event_file_that_cannot_be_written_is_warned_of_once_without_a_traceback(
    tmp_path, monkeypatch
):
    heard = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: heard.append(ended.exc_type))
    (sink,) = sinks.build(["tensorboard"], tmp_path, title="x", settings=SETTINGS, resumed_at=None)
    (file,) = (tmp_path / "tensorboard").iterdir()
    file.unlink()
    file.mkdir()  # which nobody can write to, root included
    sink.scalars({"train/loss": 0.5}, 10)
    with pytest.warns(
        sinks.TrackingWarning, match="tensorboard gets no more .*IsADirectory"
    ) as said:
        sink.close()
    assert len(said) == 1
    assert heard == []
    other = threading.Thread(target=lambda: 1 / 0)
    other.start()
    other.join()
    assert heard == [ZeroDivisionError]
