"""The benchmark that takes a step apart finds each kind of work where a recipe has it."""

import importlib
from collections import Counter
from pathlib import Path

import pytest
import torch

WIDENS = {"forward: casts", "backward: casts"}


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("step_profile")


def test_each_kind_of_work_is_found_where_a_recipe_has_it(script, monkeypatch):
    monkeypatch.setattr(script, "MODEL", script.MODELS["digits ResNet"])
    taken = {name: script.profiled(name, 1, warmup=1)[1] for name in script.RECIPES}
    everywhere = set(script.KINDS) - {script.RECAST} - WIDENS
    for kinds in taken.values():
        assert list(kinds) == list(script.KINDS)
        assert all(kinds[each] > 0 for each in everywhere)
    for half in ("fp16", "o2"):
        assert all(taken[half][each] > 0 for each in WIDENS)
    assert taken["o2"][script.RECAST] > 0
    assert taken["fp32"][script.RECAST] == 0


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "o2"])
def test_every_layer_s_product_is_counted_once(script, recipe, monkeypatch):
    """Half products call those of fp32: of each, one event is the product, and the rest Python."""
    monkeypatch.setattr(script, "MODEL", script.MODELS["digits ResNet"])
    engine, step = script.stepper(recipe)
    with engine, script.profile(activities=[script.ProfilerActivity.CPU]) as found:
        step()
    kinds = Counter(script.kind(each) for each in found.events())
    layers = Counter(type(each) for each in engine.model.modules())
    convolutions, linear = layers[torch.nn.Conv2d], layers[torch.nn.Linear]
    assert kinds["forward: convolutions"] == convolutions + linear
    # The linear layer's backward is two products, one for the weights and one for the inputs.
    assert kinds["backward: convolutions"] == convolutions + 2 * linear
