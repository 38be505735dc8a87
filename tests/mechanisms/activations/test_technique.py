"""Bits by module, every recipe, the same numbers again, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from halfstep import Engine, recipe
from halfstep.mechanisms.activations.sensitivity import Meter
from halfstep.recipe import RECIPES

from .nets import batch, live, net, saved


def test_modules_keep_the_bits_that_they_are_named_with():
    model = nn.Sequential()
    for name in ("one", "two", "three"):
        model.add_module(name, nn.Sequential(nn.Linear(128, 128), nn.Tanh()))
    spec = {"base": "fp32", "activations": {"*": 2, "t*": 8, "three": "whole"}}
    values = torch.randn(64, 128)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=spec) as engine:
        with engine.autocast():
            loss = engine.model(values).sum()
        bits = sorted(kept.packed.bits if kept.packed else 32 for kept in saved())
        assert bits == [2, 2, 8, 8, 32, 32]
        engine.backward(loss)
        engine.step()
    assert not any(module._forward_hooks for module in model.modules())
    with pytest.raises(ValueError, match="activations names 'four', which matches no module"):
        Engine(model, SGD(model.parameters(), lr=0.1), recipe={"activations": {"*": 2, "four": 4}})


def test_a_second_derivative_is_refused():
    model = net()
    images, labels = batch()
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="act4") as engine:
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        with pytest.raises(RuntimeError, match="compressed activations have no second derivative"):
            engine.grad(loss, list(model.parameters()), create_graph=True)


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.startswith("act")])
def test_it_composes_with_every_recipe(name):
    model = net()
    images, labels = batch()
    spec = recipe(f"{name}+act8")
    with Engine(model, SGD(model.parameters(), lr=0.05), recipe=spec) as engine:
        losses = []
        for index in range(4):
            with engine.autocast():
                loss = cross_entropy(engine.model(images).float(), labels)
            if index == 1:  # what is kept is looked for among all objects that there are
                assert any(kept.packed is not None for kept in saved())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_same_seed_draws_the_same_and_a_resumed_engine_goes_on():
    def trained(steps: int, state: Any = None) -> tuple[list[float], Any]:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.05)
        images, labels = batch()
        losses = []
        with Engine(model, optimizer, recipe="fp32+act2") as engine:
            if state is not None:
                model.load_state_dict(state[0])
                engine.load_state_dict(state[1])
            for _ in range(steps):
                with engine.autocast():
                    loss = cross_entropy(engine.model(images), labels)
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            kept = {key: value.clone() for key, value in model.state_dict().items()}
            return losses, (kept, engine.state_dict())

    whole, _ = trained(6)
    assert trained(6)[0] == whole
    first, state = trained(3)
    assert first + trained(3, state)[0] == whole


class Norms(nn.Module):
    """Norm layers with a backward of ours, and a module that raises when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        layers = (
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GroupNorm(2, 8),
            nn.InstanceNorm2d(8, affine=True), nn.LayerNorm(16), nn.RMSNorm(16),
        )  # fmt: skip
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(8 * 256, 5)
        self.raises = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.layers(images)
        if self.raises:
            raise ArithmeticError
        return self.head(features.flatten(1))


FAULTS = ("forward", "early exit", "no backward", "evaluation", "second backward")


def take_step(engine: Engine, fault: str) -> None:
    images, labels = batch()
    if fault == "evaluation":
        with engine.evaluating():
            engine.model(images)
        return
    engine.bare_model.raises = fault == "forward"
    with engine.autocast():
        loss = cross_entropy(engine.model(images), labels)
        if fault == "early exit":
            return
    if fault == "second backward":
        engine.backward(loss)
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        engine.step()


@pytest.mark.parametrize("kept", [{"activations": {"*": 4, "head": 8}}, {"activation_budget": 0.2}])
def test_no_fault_in_the_middle_leaves_anything_behind(kept):
    torch.manual_seed(0)
    model = Norms()
    spec = {"base": "fp32", **kept}
    counts = []
    with Engine(model, SGD(model.parameters(), lr=0.01), recipe=spec) as engine:
        for index in range(100 + len(FAULTS)):
            with contextlib.suppress(ArithmeticError):
                take_step(engine, FAULTS[index % len(FAULTS)])
            if index in {len(FAULTS) - 1, 99 + len(FAULTS)}:
                hooks = [len(each._forward_hooks) for each in model.modules()]
                counts.append((live(), hooks))
        assert counts[0] == counts[1]
        assert not any(type(each) is Meter for each in gc.get_objects())
        ignore_is_tracing = True
        assert torch._C._autograd._top_saved_tensors_default_hooks(ignore_is_tracing) is None
        assert not torch.overrides._get_current_function_mode_stack()
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_recipes_say_what_is_wrong():
    with pytest.raises(ValueError, match=r"activations is 'two'; allowed: 2, 3, 4, 8 or a mapping"):
        recipe({"activations": "two"})
    with pytest.raises(ValueError, match=r"keeps '\*' in 5 bits; allowed: 2, 3, 4, 8, 'whole'"):
        recipe({"activations": 5})
    with pytest.raises(ValueError, match="write activations=4, or leave activation_group out"):
        recipe({"activation_group": 64})
    assert str(recipe("fp16+act2")).endswith("activations 2 bits)")
    both = recipe({"activations": {"*": 2}}) + recipe({"activations": {"head": "whole"}})
    assert both.settings() == {"activations": {"*": 2, "head": "whole"}}
    assert recipe(both.settings()).parts == both.parts
    with pytest.raises(ValueError, match="disagree on activations"):
        recipe("act2+act4")
