import json
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from halfstep.errors import UserError
from halfstep.train.observers.tracking import MetricsLines, Sinks
from halfstep.train.processes.processes import ALONE
from halfstep.train.run.observer import Observers
from halfstep.train.task.figures import Figures

FIGURES = {
    "step": 10,
    "epoch": 1,
    "loss": 0.5,
    "accuracy": 0.25,
    "lr": 0.1,
    "loss_scale": 65536.0,
    "grad_norm": float("nan"),
    "images_per_second": 123.0,
}
VALIDATION = {"epoch": 1, "step": 10, "loss": 0.75, "accuracy": 0.5}


def track(run, *, names=("tensorboard",), resumed_at=None):
    samples = torch.zeros(3, 8, 12, dtype=torch.uint8)
    config = SimpleNamespace(tracking=names, model_dump=lambda mode: {})
    training = SimpleNamespace(
        run=run,
        config=config,
        title="digits fp16",
        step=10,
        setup=SimpleNamespace(steps=10),
        resumed_at=resumed_at,
    )
    observers = Observers([MetricsLines(), Sinks()], ALONE)
    with observers.watching(training):
        observers.record("train", FIGURES)
        observers.record("val", VALIDATION)
        observers.call("validated", Figures(0.75, 0.5, samples=samples))


def test_metrics_are_lines_of_strict_json(tmp_path):
    track(tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    train, val = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert train == {"kind": "train", **FIGURES, "grad_norm": "nan"}
    assert val == {"kind": "val", **VALIDATION}


def test_tensorboard_has_the_same_figures(tmp_path):
    track(tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Scalars("train/loss_scale")[0].value == 65536
    assert events.Scalars("val/accuracy")[0].step == 10
    assert (events.Images("val/samples")[0].width, events.Images("val/samples")[0].step) == (12, 10)


def test_run_that_goes_on_adds_to_its_lines(tmp_path):
    track(tmp_path)
    track(tmp_path, resumed_at=10)
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "metrics.jsonl").open()]
    assert kinds == ["train", "val"] * 2
    track(tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_figures_go_where_the_config_says(tmp_path, monkeypatch):
    track(tmp_path, names=())
    assert not (tmp_path / "tensorboard").exists()
    assert (tmp_path / "metrics.jsonl").exists()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UserError, match="the package wandb is not installed"):
        track(tmp_path, names=("tensorboard", "wandb"))
