from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from halfstep.bench import loader
from halfstep.train import data

CPU = torch.device("cpu")


@pytest.fixture
def prepared(monkeypatch):
    """Keep the labels of every batch that is prepared."""
    kept = []
    prepare = data.Data.prepare

    def keeping(self, images, labels, **named):
        kept.append(labels.tolist())
        return prepare(self, images, labels, **named)

    monkeypatch.setattr(data.Data, "prepare", keeping)
    return kept


def test_images_are_counted_over_epochs_and_the_first_batches_left_out(tiny, monkeypatch):
    ticks = iter([10.0, 12.0])
    clock = SimpleNamespace(perf_counter=lambda: next(ticks))
    monkeypatch.setattr(loader, "time", clock)
    rate = loader.images_per_second(tiny(), CPU, 0, steps=8, skipped=4)
    # 1,347 images are 5 batches of 256 and one of 67.
    images = [256, 67, *[256] * 5, 67]
    assert rate == sum(images) / 2


def test_any_number_of_workers_loads_the_same_batches(tiny, prepared):
    seen = []
    for workers in (0, 1):
        prepared.clear()
        loader.images_per_second(tiny(), CPU, workers, steps=5, skipped=3)
        seen.append(list(prepared))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 8


def test_more_workers_than_processors_are_told_and_measured_once(tiny, console, monkeypatch):
    monkeypatch.setattr(data, "usable_workers", lambda wanted: min(wanted, 1))
    monkeypatch.setattr(loader, "images_per_second", lambda *_, **__: 100.0)
    outcome = loader.bench(tiny(), options=[], workers="0,1,8", steps=2, rounds=2, console=console)
    assert list(outcome.figures["rows"]) == ["0", "1"]
    assert "1 instead of 8 here" in outcome.notes[-1]
    assert replace(outcome.subject, environment={}).title == "bench loader tiny on cpu"
