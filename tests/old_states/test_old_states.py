"""What former releases have saved is loaded, and goes on as it would have gone on there."""

from __future__ import annotations

import json
import shutil
from functools import cache
from typing import TYPE_CHECKING

import pytest
import torch

from halfstep.engine import load_sharded
from halfstep.train.config.files import load
from halfstep.train.loop.loop import train

from . import training

if TYPE_CHECKING:
    from pathlib import Path

RELEASES = sorted(folder.parent for folder in training.FOLDER.glob("*/next_losses.json"))
STATES = [path for folder in RELEASES for path in sorted(folder.glob("*.pt"))]


@cache
def written(folder: Path) -> dict:
    return json.loads((folder / "next_losses.json").read_text())


def near(folder: Path, name: str) -> object:
    """What the release went on with, where another processor takes sums in another order."""
    expected = written(folder)["next_losses"][name]
    return pytest.approx(expected, rel=1e-4 if name in {"fp32", "o0"} else 1e-2)


def assert_goes_on(losses: list[float], folder: Path, name: str) -> None:
    """Hold losses to those that the release went on with: bit for bit on the same processor."""
    if written(folder)["made_with"] == training.made_with():
        assert losses == written(folder)["next_losses"][name]
    assert losses == near(folder, name)


@pytest.mark.parametrize("file", STATES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_an_engine_goes_on_within_its_window(file: Path) -> None:
    saved = torch.load(file, weights_only=True)
    spec = training.specs()[file.stem]
    with training.engine_for(spec, training.net()) as engine:
        engine.load_state_dict(saved["engine"])
        engine.model.load_state_dict(saved["model"])
        losses = training.go_on(engine, training.SAVED_AT, training.LAST)
    assert_goes_on(losses, file.parent, file.stem)


def test_every_recipe_of_a_release_has_its_state() -> None:
    assert {file.stem for file in STATES} >= {*training.COMPOSITIONS, "fp32", "o2", "fp8-delayed"}
    for folder in RELEASES:
        stems = {file.stem for file in folder.glob("*.pt")}
        assert stems | {"run", "sharded"} == written(folder)["next_losses"].keys()


@pytest.mark.parametrize("missing", ["momentum", "window", "scale"])
def test_what_is_not_taken_over_would_be_seen(missing: str) -> None:
    """The losses above tell an engine that forgets a part of its state from one that does not."""
    folder = RELEASES[-1]
    saved = torch.load(folder / "fp16.pt", weights_only=True)
    state = saved["engine"]
    with training.engine_for("fp16", training.net()) as engine:
        if missing == "scale":
            state["scales"] = engine.state_dict()["scales"]
        elif missing == "window":
            state["windows"] = engine.state_dict()["windows"]
        else:
            state["optimizers"][0]["state"] = {}
        engine.load_state_dict(state)
        engine.model.load_state_dict(saved["model"])
        losses = training.go_on(engine, training.SAVED_AT, training.LAST)
    assert losses != near(folder, "fp16")


@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_one_process_goes_on_with_what_two_have_sharded(folder: Path) -> None:
    with training.engine_for(training.SHARDED, training.net()) as engine:
        assert load_sharded(folder / "sharded", engine) == {"epoch": 1}
        losses = training.go_on(engine, training.SAVED_AT, training.LAST)
    assert_goes_on(losses, folder, "sharded")


@pytest.mark.parametrize("folder", RELEASES, ids=lambda folder: folder.name)
def test_a_run_goes_on_from_the_middle_of_an_epoch(folder: Path, tmp_path: Path) -> None:
    config, run = tmp_path / "small.yaml", tmp_path / "run"
    config.write_text(training.CONFIG)
    shutil.copytree(folder / "run", run)
    summary = train(load(str(config)), run, quiet=True, go_on="auto")
    assert summary.status == "finished"
    assert_goes_on(training.losses_of(run, after=2), folder, "run")
