import io
import json

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from halfstep.train.tracking import Tracker

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


def track(run, *, terminal, quiet):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160)
    with Tracker(run, steps=10, title="digits fp16", quiet=quiet, console=console) as tracker:
        tracker.train(FIGURES, memory_bytes=64 * 2**20)
        tracker.validation(VALIDATION)
    return console.file.getvalue()


def test_metrics_are_lines_of_strict_json(tmp_path):
    track(tmp_path, terminal=False, quiet=False)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    train, val = (json.loads(line, parse_constant=pytest.fail) for line in lines)
    assert train == {"kind": "train", **FIGURES, "grad_norm": "nan"}
    assert val == {"kind": "val", **VALIDATION}


def test_tensorboard_has_the_same_figures(tmp_path):
    track(tmp_path, terminal=False, quiet=False)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Scalars("train/loss_scale")[0].value == 65536
    assert events.Scalars("val/accuracy")[0].step == 10


def test_bar_shows_loss_accuracy_speed_memory_and_scale(tmp_path):
    shown = track(tmp_path, terminal=True, quiet=False)
    for part in ("digits fp16", "loss 0.5000", "acc 25.0%", "123 img/s", "64 MiB", "scale 65536"):
        assert part in shown
    assert "val accuracy 50.00%" in shown


@pytest.mark.parametrize(("terminal", "quiet"), [(False, False), (True, True)])
def test_nothing_is_drawn_where_nobody_watches(tmp_path, terminal, quiet):
    assert track(tmp_path, terminal=terminal, quiet=quiet).strip() == ""
