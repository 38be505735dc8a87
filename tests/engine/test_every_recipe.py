"""What every recipe of the table does: it learns, resumes bit for bit, and fine-tunes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from halfstep.engine import Engine
from halfstep.recipe import RECIPES

from .test_contract import CONTRACT
from .tiny import differences, fp64_digits_net, sgd, through_a_file


def train(engine: Engine, batches: Any) -> list[float]:
    losses = []
    for images, labels in batches:
        with engine.autocast():
            loss = cross_entropy(engine.model(images), labels)
        engine.backward(loss)
        engine.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", CONTRACT)
def test_recipe_learns_and_its_checkpoint_is_fp32(digits, name: str) -> None:
    model = fp64_digits_net()
    with Engine(model, sgd(model), recipe=name) as engine:
        losses = train(engine, digits.batches(32, 30))
        assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
        checkpoint = model.state_dict()
        held = engine.optimizer.param_groups[0]["params"]
        for (key, _), weight in zip(model.named_parameters(), held, strict=True):
            # What the optimizer holds is the most exact copy that there is.
            assert checkpoint[key].dtype == torch.float32
            assert torch.equal(checkpoint[key], weight.detach().float())
        for key, buffer in model.named_buffers():
            if buffer.is_floating_point():
                assert checkpoint[key].dtype == torch.float32
                assert torch.equal(checkpoint[key], buffer.float())


@pytest.mark.parametrize("name", CONTRACT)
def test_state_round_trips_bitwise_in_the_middle_of_a_window(digits, name: str) -> None:
    batches = digits.batches(8, 16)

    def build() -> Engine:
        model = fp64_digits_net()
        settings = {"base": name, "name": name}
        if RECIPES[name][0].loss_scale:
            settings["loss_scale"] = {"init": 2.0**14, "growth_interval": 2}
        return Engine(model, sgd(model), recipe=settings, accumulate=3, seed=5)

    with build() as engine:
        train(engine, batches[:8])
        saved = through_a_file({"model": engine.model.state_dict(), "engine": engine.state_dict()})
        train(engine, batches[8:])
        went_on = {"model": engine.model.state_dict(), "engine": engine.state_dict()}
    with build() as engine:
        train(engine, batches[:2])  # Whatever came before is forgotten.
        engine.model.load_state_dict(saved["model"])
        engine.load_state_dict(saved["engine"])
        assert engine.steps == 2
        train(engine, batches[8:])
        resumed = {"model": engine.model.state_dict(), "engine": engine.state_dict()}
    assert engine.steps == 5
    assert not differences(resumed, went_on)


@pytest.mark.parametrize("name", CONTRACT)
def test_fine_tuning_with_batch_norm_in_eval_works(digits, name: str) -> None:
    model = fp64_digits_net()
    model.train()
    model.batch_norm.eval()
    model.batch_norm.weight.requires_grad_(requires_grad=False)
    model.batch_norm.running_mean.fill_(0.25)
    with Engine(model, sgd(model), recipe=name) as engine:
        statistics = {key: buffer.clone() for key, buffer in model.named_buffers()}
        losses = train(engine, digits.batches(32, 20))
        with engine.evaluating():
            engine.model(digits.images)
        assert not differences(dict(model.named_buffers()), statistics)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert not model.batch_norm.training
    assert model.conv.training
