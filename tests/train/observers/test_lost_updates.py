"""The share of the updates of bf16 weights that round to nothing, in the figures of a run."""

from __future__ import annotations

import json
import math

import torch
from torch import nn

from halfstep import Engine
from halfstep.optim import in_one_kernel
from halfstep.train.loop.loop import train
from halfstep.train.observers.lost_updates import LostUpdates


def step(engine: Engine, observer: LostUpdates, *, overflows: bool = False) -> None:
    values = torch.full((4, 8), torch.inf if overflows else 1.0)
    engine.backward(engine.model(values.bfloat16()).float().sum())
    observer.stepped(0, engine.step())


def test_the_share_is_of_the_steps_of_an_interval_that_were_taken(monkeypatch):
    monkeypatch.setattr(in_one_kernel, "DEVICES", {"cpu"})
    model = nn.Linear(8, 4)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1e-4), recipe="bf16-sr")
    observer = LostUpdates(engine)
    for _ in range(3):
        step(engine, observer)
    first = engine.lost_updates
    assert 0 < first < 3 * 36
    assert observer.interval() == {"lost_update_share": first / (3 * 36)}
    step(engine, observer)
    step(engine, observer, overflows=True)
    observer.stepped(0, None)  # vetoed
    assert observer.interval() == {"lost_update_share": (engine.lost_updates - first) / 36}
    step(engine, observer, overflows=True)
    assert math.isnan(observer.interval()["lost_update_share"])


def test_without_a_count_there_is_no_figure():
    model = nn.Linear(8, 4)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), recipe="bf16")
    assert LostUpdates(engine).interval() == {}


def test_a_run_records_it_where_it_is_counted_under_doctor_too(monkeypatch, tiny, tmp_path):
    def shares(name: str, *overrides: str) -> list[float | None]:
        train(tiny(*overrides), tmp_path / name, quiet=True)
        assert not (tmp_path / name / "diagnosis.txt").exists()
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [line.get("lost_update_share") for line in lines if line["kind"] == "train"]

    monkeypatch.setattr(in_one_kernel, "DEVICES", {"cpu"})
    watched = shares("watched", "recipe=bf16-sr", "doctor=true")
    assert all(0 < share < 1 for share in watched)
    assert shares("alone", "recipe=bf16-sr") == watched
    assert not any(shares("bf16", "recipe=bf16"))
