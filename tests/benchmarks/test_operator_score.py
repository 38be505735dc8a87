"""Operators are measured, steps of another model predicted from them, and compared with its steps.

The CPU is the device. This tests the way from the one to the other, not how exact it is.
"""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.advise.predict import measured
from halfstep.advise.predict.forecast import Forecaster
from halfstep.advise.predict.gpus import read
from halfstep.advise.predict.interval import known
from halfstep.advise.predict.workload import workload
from halfstep.advise.subject import Subject
from halfstep.bench.operators import measuring
from halfstep.cli import main
from halfstep.recipe import recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LISTED, OTHER = (56, 72), 64
SLOW = """[mine]
architecture = "cpu"
process = 7
fp16 = 0.0001
fp32 = 0.0001
bandwidth = 0.01
memory = 16
cache = 16
sms = 2
clock = 3000
power = 100
"""
"""A datasheet with a thousandth of the rates of any CPU, so that the cost model is far off."""


def build(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(),
        nn.Linear(width * 256, 4 * width), nn.GELU(), nn.Linear(4 * width, 10),
    )  # fmt: skip


def subject(width: int) -> Subject:
    batch = torch.zeros(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64)
    return Subject(
        f"net of width {width}",
        build(width),
        lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        [batch],
        lambda model: torch.optim.SGD(model.parameters(), 0.01, momentum=0.9),
    )


def test_steps_are_predicted_from_operators_of_other_models_and_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SLOW)
    (gpu,) = read(Path("mine.toml")).values()
    operator_list, score = map(importlib.import_module, ("operator_list", "operator_score"))
    models, steps, items = map(
        importlib.import_module, ("gpu_items.models", "gpu_items.steps", "gpu_items")
    )
    turns = importlib.import_module("gpu_items.turns")

    # Measured: the operators of two models.
    monkeypatch.setattr(operator_list, "_SIZES", (2**19, 2**17))
    calls = [call for width in LISTED for call in operator_list.calls(subject(width), "fp32")]
    listed = [json.loads(key) for key in dict.fromkeys(key for key, _ in calls)]
    monkeypatch.setattr(measuring, "commonest", lambda: [*operator_list.optimizers(), *listed])
    before = Forecaster(subject(OTHER), largest=False).predict(recipe("fp32"), gpu)
    assert main(["bench", "operators", "--gpu", "mine.toml", "--device", "cpu"]) == 0
    assert "calls are in" in capsys.readouterr().out

    # Predicted: a step of a third model, from the user's file, which is found by itself.
    (near,) = measured.every()
    assert near.own
    forecaster = Forecaster(subject(OTHER), largest=False)
    after = forecaster.predict(recipe("fp32"), gpu)
    assert after.measured == f"CPU with PyTorch {torch.__version__}"
    assert not after.caution
    assert before.caution
    assert after.seconds.value < before.seconds.value / 10
    of_step = forecaster.trace(recipe("fp32")).calls
    work = measured.corrected(workload(of_step, gpu, tf32=False), of_step, gpu, near, tf32=False)
    assert (work.trust < 1).mean() > 0.5  # most calls of this model were not measured themselves
    assert known(work) > 0.5

    # Compared: with its measured steps.
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = build(OTHER)
        return model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, fused=True)

    images, labels = torch.randn(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64)
    task = steps.Task("a net", make, lambda model: functional.cross_entropy(model(images), labels))
    rows = turns.alternate(
        [models.variant(task, "fp32")], items.At("cpu", toy=True, deadline=math.inf)
    )
    taken = score.steps([{"rows": [{"of": task.of, **row} for row in rows]}])
    (row,) = score.scored(taken, gpu, near, lambda of: subject(OTHER))
    assert row["predicted_ms"] == pytest.approx(1e3 * after.seconds.value)
    assert row["model_ms"] == pytest.approx(1e3 * before.seconds.value)
    assert row["low"] < row["predicted_ms"] < row["high"]
    found = score.summaries([row])
    errors = found["fp32 and tf32"]
    # The datasheet is off by orders of magnitude, and what was measured is not.
    assert errors["operators"]["median"] < errors["model"]["median"] / 10
    assert found["intervals"]["n"] == 1
    assert found["intervals"]["inside"] in {0.0, 1.0}


def test_a_row_names_its_model_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    score = importlib.import_module("operator_score")
    found = score.subject("test_resnet, 2 images of 32 px, NHWC")
    assert found.batches[0][0].shape == (2, 3, 32, 32)
    assert found.batches[0][0].is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="allowed: NAME, N images of N px, NCHW or NHWC"):
        score.subject("test_resnet")
    assert not score.limited_by_gpu({"ms": 1.0, "host_ms": 0.99})


def test_intervals_count_as_errors_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    score = importlib.import_module("operator_score")
    rows = [
        {"recipe": name, "ms": 1.0, "predicted_ms": at, "model_ms": 2.0, "low": low, "high": 2.0}
        for name, at, low in (("bf16", 1.1, 0.9), ("fp16", 0.8, 0.7), ("tf32", 1.5, 1.4))
    ]
    found = score.summaries(rows)
    assert found["fp16 and bf16"]["operators"]["n"] == 2
    assert found["fp16 and bf16"]["operators"]["median"] == pytest.approx(0.15)
    assert found["fp32 and tf32"]["model"]["median"] == pytest.approx(1.0)
    assert found["intervals"] == {"n": 3, "percent": 80, "inside": pytest.approx(2 / 3)}
