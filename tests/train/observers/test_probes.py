"""Probes in a whole run: what it leaves, and that it ends in the same weights."""

from __future__ import annotations

import json

import pytest
import torch
import torch.distributed as dist

from halfstep.train.loop.loop import train
from halfstep.train.processes.processes import Processes
from halfstep.train.store import checkpoint


def lines(run, kind):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.parametrize("recipe", ["fp16", "fp8-delayed"])
def test_a_run_with_probes_is_the_same_run(tiny, tmp_path, recipe):
    options = [f"recipe={recipe}", "epochs=2", "max_steps=6"]
    plain = train(tiny(*options), tmp_path / "plain", quiet=True)
    probed = train(tiny(*options, "probes=true"), tmp_path / "probed", quiet=True)
    states = [
        checkpoint.load(checkpoint.path(tmp_path / name, "last")).model
        for name in ("plain", "probed")
    ]
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    assert plain.formats is None
    assert lines(tmp_path / "plain", "probe") == []
    assert probed.best_accuracy == plain.best_accuracy


def test_each_epoch_ends_with_a_look(tiny, tmp_path):
    summary = train(tiny("recipe=fp16", "epochs=2", "probes=true"), tmp_path / "run", quiet=True)
    rows = lines(tmp_path / "run", "probe")
    assert [row["epoch"] for row in rows] == [1, 2]
    assert all(0.9 < row["gradient_cosine"] < 1 for row in rows)
    assert all(0 <= row["unchanged_share"] < 0.9 for row in rows)
    assert summary.newest.keys() <= rows[-1].keys()
    shares = [row["unchanged_share"] for row in rows]
    assert summary.unchanged_share == pytest.approx(sum(shares) / 2)
    assert summary.formats["shares"] == {"fp16": 1.0}
    assert summary.held_bytes["parameters"] > 0
    assert summary.checkpoint_bytes > summary.held_bytes["parameters"]


def test_single_precision_has_gradients_of_its_own(tiny, tmp_path):
    summary = train(tiny("epochs=1", "probes=true"), tmp_path / "run", quiet=True)
    assert summary.newest["gradient_error"] == pytest.approx(0, abs=1e-6)


def test_updates_that_bf16_rounds_away_show(tiny, tmp_path):
    options = ["epochs=1", "probes=true", "optimizer.lr=1e-3", "schedule={name: constant}"]
    shares = {
        recipe: train(tiny(*options, f"recipe={recipe}"), tmp_path / recipe, quiet=True).newest[
            "unchanged_share"
        ]
        for recipe in ("fp32", "bf16-true")
    }
    assert shares["bf16-true"] > shares["fp32"] + 0.1


def test_a_rehearsed_run_says_so(tiny, tmp_path):
    summary = train(tiny("recipe=fp8", "max_steps=1"), tmp_path / "run", quiet=True)
    assert any("float8 dynamic: rehearsed" in line for line in summary.rehearsed)
    assert train(tiny("max_steps=1"), tmp_path / "plain", quiet=True).rehearsed == []


def test_a_look_that_memory_does_not_suffice_for_ends_looking_and_not_the_run(
    tiny, tmp_path, monkeypatch
):
    def fail(probe):
        raise torch.OutOfMemoryError("no room for a twin")

    monkeypatch.setattr("halfstep.train.observers.probe.Probe.gradients", fail)
    with pytest.warns(UserWarning, match="there is not enough memory for probes") as said:
        summary = train(tiny("epochs=2", "probes=true"), tmp_path / "run", quiet=True)
    assert len([each for each in said if "memory for probes" in str(each.message)]) == 1
    assert summary.status == "finished"
    assert lines(tmp_path / "run", "probe") == []


def test_a_step_that_was_not_made_leaves_no_share(tiny, tmp_path):
    """It would look as if all updates were too small for the weights' format."""
    overflowing = "recipe={base: fp16, loss_scale: {init: 3e38, ceiling: 3e38}}"
    config = tiny("max_steps=1", "probes=true", overflowing)
    summary = train(config, tmp_path / "run", quiet=True)
    assert (summary.steps, summary.skipped_steps) == (1, 1)
    assert summary.unchanged_share is None
    assert "gradient_cosine" in summary.newest


def test_a_process_that_is_joined_alone_can_be_looked_into(tiny, tmp_path):
    """Its model is in DistributedDataParallel, as if there were others."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        alone = Processes(group=dist.group.WORLD)
        summary = train(
            tiny("max_steps=2", "probes=true"), tmp_path / "run", quiet=True, processes=alone
        )
    finally:
        dist.destroy_process_group()
    assert summary.newest["gradient_cosine"] == pytest.approx(1)
