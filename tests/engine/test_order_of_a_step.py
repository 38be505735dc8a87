"""What a model, an optimizer and a scheduler see of a step, in which order, under every recipe.

Seen from outside, by hooks of modules, parameters and optimizers, as precision plugins of Lightning
Fabric are tested.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import LambdaLR

from halfstep.engine import Engine
from halfstep.recipe import RECIPES, recipe

from .tiny import relative_error

INPUTS = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
CLIP = 0.25
TOLERANCE = 0.2
"""Of FP8's two bits of fraction in a gradient, the coarsest; a scale left in is off by 65536."""


class Model(nn.Module):
    """Notes what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(16, 16, bias=False)
        self.called_with: list[Any] = []

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        self.called_with.append({name: value.dtype for name, value in batch.items()})
        return {"logits": self.layer(batch["x"]), "index": batch["index"]}


def loss_of(model: nn.Module, inputs: torch.Tensor = INPUTS) -> torch.Tensor:
    output = model({"x": inputs, "index": torch.arange(len(inputs))})
    assert output["index"].dtype == torch.int64
    return output["logits"].float().square().mean() * 10


def held(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    (param,) = optimizer.param_groups[0]["params"]
    return param


@pytest.mark.parametrize("name", RECIPES)
def test_events_of_a_window_come_in_order(name: str) -> None:
    events: list[str] = []
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.01)
    model.layer.register_forward_pre_hook(lambda *_: events.append("forward"))
    model.layer.weight.register_post_accumulate_grad_hook(lambda _: events.append("gradient"))
    optimizer.register_step_pre_hook(lambda *_: events.append("step"))
    optimizer.register_step_post_hook(lambda *_: events.append("stepped"))
    scheduler = LambdaLR(optimizer, lambda done: events.append(f"schedule {done}") or 1.0)
    events.clear()
    # Without a loss scale that would have to be found first.
    chosen = recipe(name) if recipe(name).loss_scale is None else {"base": name, "loss_scale": 8}
    with Engine(model, optimizer, recipe=chosen, accumulate=2, scheduler=scheduler) as engine:
        for _ in range(4):
            with engine.autocast():
                loss = loss_of(engine.model)
            engine.backward(loss)
            engine.step()
            events.append("|")
    micro_step, update = ["forward", "gradient"], ["step", "stepped"]
    first = [*micro_step, "|", *micro_step, *update, "|"]
    # What follows from a step is settled when the next one ends, or when the engine closes.
    second = [*micro_step, "schedule 1", "|", *micro_step, *update, "|", "schedule 2"]
    assert events == first + second


@pytest.mark.parametrize("name", RECIPES)
def test_an_optimizer_is_given_true_clipped_gradients_and_leaves_none(name: str) -> None:
    exact = Model()
    (by_weight,) = torch.autograd.grad(loss_of(exact), exact.layer.weight)
    assert by_weight.norm() > 2 * CLIP
    wanted = by_weight * (CLIP / by_weight.norm())

    given: list[torch.Tensor] = []
    model = Model()
    optimizer = SGD(model.parameters(), lr=0.01)
    optimizer.register_step_pre_hook(lambda *_: given.append(held(optimizer).grad.clone()))
    chosen = recipe(name) if recipe(name).loss_scale is None else {"base": name, "loss_scale": 512}
    with Engine(model, optimizer, recipe=chosen, clip_norm=CLIP) as engine:
        with engine.autocast():
            loss = loss_of(engine.model)
        engine.backward(loss)
        result = engine.step()
        assert all(param.grad is None for param in (*model.parameters(), held(optimizer)))
    assert relative_error(given[0], wanted) < TOLERANCE
    assert result.grad_norm == pytest.approx(float(by_weight.norm()), rel=TOLERANCE)


@pytest.mark.parametrize("name", RECIPES)
def test_a_model_is_called_with_floats_of_its_format_and_other_tensors_as_they_are(
    name: str,
) -> None:
    model = Model()
    with Engine(model, SGD(model.parameters(), lr=0.01), recipe=name) as engine:
        with engine.autocast():
            loss_of(engine.model)
            format_ = model.layer.weight.dtype
            loss_of(engine.model, INPUTS if format_ == torch.float32 else INPUTS.double())
        wanted = {"x": format_, "index": torch.int64}
    assert model.called_with == [wanted, wanted]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("region", ["autocast", "evaluating"])
def test_an_error_in_a_region_leaves_nothing_switched(name: str, region: str) -> None:
    def switches() -> list[Any]:
        enabled = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()
        return [torch.get_default_dtype(), torch.is_grad_enabled(), model.training, *enabled]

    model = Model()
    with Engine(model, SGD(model.parameters(), lr=0.01), recipe=name) as engine:
        before = switches()
        with pytest.raises(ZeroDivisionError), getattr(engine, region)():
            raise ZeroDivisionError
        assert switches() == before
        assert engine.model({"x": INPUTS, "index": INPUTS})["logits"].requires_grad
