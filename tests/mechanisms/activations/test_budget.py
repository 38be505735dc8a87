"""Bits chosen under a budget: the least noise for their bytes, and the same after a resume."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from halfstep import Engine, recipe
from halfstep.mechanisms.activations.allocation import allocate
from halfstep.mechanisms.activations.budget import BudgetedActivations
from halfstep.mechanisms.activations.sensitivity import Measured

from .nets import batch, net, saved

BUDGET = {"base": "fp32", "activation_budget": 0.25}


def test_bits_go_where_they_lower_the_noise_most_for_their_bytes():
    modules = {
        "loud": Measured(256_000, 1_024_000, 1000.0),
        "quiet": Measured(256_000, 1_024_000, 1.0),
        "large": Measured(2_560_000, 10_240_000, 1000.0),
    }
    every_bit = {
        budget: allocate(modules, budget=budget, group=256, fixed=(0, 0))
        for budget in (0.07, 0.1, 0.2)
    }
    assert every_bit[0.07] == {"loud": 3, "quiet": 2, "large": 2}
    assert every_bit[0.1] == {"loud": 4, "quiet": 2, "large": 3}
    for budget, bits in every_bit.items():
        taken = sum(modules[name].elements * (each / 8 + 4 / 256) for name, each in bits.items())
        assert taken <= budget * sum(each.exact for each in modules.values())


def test_a_budget_below_two_bits_names_the_least_that_can_be_had():
    with pytest.raises(
        ValueError, match=r"0\.263 of the exact bytes; write activation_budget=0\.27"
    ):
        allocate({"one": Measured(1000, 4000, 1.0)}, budget=0.1, group=256, fixed=(1000, 1047))


def trained(steps: int, spec: Any, state: Any = None) -> tuple[list[float], Any, dict[str, int]]:
    """Return losses, the state afterwards, and the bits that were chosen."""
    model = net()
    images, labels = batch()
    losses = []
    with Engine(model, SGD(model.parameters(), lr=0.05), recipe=spec) as engine:
        if state is not None:
            model.load_state_dict(state[0])
            engine.load_state_dict(state[1])
        for _ in range(steps):
            with engine.autocast():
                loss = cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        kept = {key: value.clone() for key, value in model.state_dict().items()}
        saved_state = engine.state_dict()
    chosen = saved_state["techniques"]["BudgetedActivations"]["chosen"]
    return losses, (kept, saved_state), chosen


def test_a_resumed_run_keeps_the_bits_and_goes_on_the_same():
    losses, _, chosen = trained(4, BUDGET)
    assert len(set(chosen.values())) > 1
    first, state, _ = trained(1, BUDGET)
    rest, _, again = trained(3, BUDGET, state)
    assert first + rest == losses
    assert again == chosen


def test_what_is_kept_fits_the_budget():
    model = net()
    images, labels = batch()
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=BUDGET) as engine:
        for _ in range(2):
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
            kept = [each.packed for each in saved() if each.packed]
            engine.backward(loss)
            engine.step()
    assert len({each.bits for each in kept}) > 1
    assert sum(each.nbytes for each in kept) <= 0.25 * sum(each.elements * 4 for each in kept)


def test_a_vision_transformer_fits_its_budget_with_queries_and_keys_whole():
    torch.manual_seed(0)
    model = VisionTransformer(
        img_size=32, patch_size=4, embed_dim=64, depth=2, num_heads=2, num_classes=5
    )
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    params = {each.untyped_storage().data_ptr() for each in model.parameters()}
    exact: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        exact[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor.detach()

    with saved_tensors_hooks(note, lambda tensor: tensor):
        first = cross_entropy(model(images), labels)  # alive, so that no memory is used twice
    recipe = {"base": "fp32", "activation_budget": 0.3}
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=recipe) as engine:
        technique = next(
            each for each in engine.techniques if isinstance(each, BudgetedActivations)
        )
        for _ in range(2):
            with technique.looked_at() as storages, engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
                kept = storages()
            engine.backward(loss)
            engine.step()
        chosen = engine.state_dict()["techniques"]["BudgetedActivations"]["chosen"]
    assert {"0.blocks.0.mlp.fc1", "0.blocks.1.attn.qkv"} <= set(chosen)
    assert len(set(chosen.values())) > 1
    of_exact = sum(size for place, size in exact.items() if place not in params)
    taken = sum(size for place, (size, _) in kept.items() if place not in params)
    assert 0.2 * of_exact < taken <= 0.3 * of_exact
    del first


def test_patterns_win_over_the_budget():
    spec = {**BUDGET, "activations": {"widen": 8, "left": "whole"}, "activation_budget": 0.4}
    _, _, chosen = trained(1, spec)
    assert chosen
    assert not {"0.widen", "0.left"} & set(chosen)
    with pytest.raises(ValueError, match=r"by '\*', but activation_budget=0.2 chooses them"):
        recipe({"activations": 4, "activation_budget": 0.2})
    with pytest.raises(ValueError, match="allowed: a number between 0 and 1"):
        recipe({"activation_budget": 2})


def test_a_step_that_overflowed_is_measured_again():
    model = net()
    images, labels = batch()
    with Engine(model, SGD(model.parameters(), lr=0.0), recipe=BUDGET) as engine:
        for factor in (float("inf"), 1.0):
            assert not engine.state_dict()["techniques"]["BudgetedActivations"]["chosen"]
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels) * factor
            engine.backward(loss)
            engine.step() if factor == 1.0 else engine.zero_grad()
        assert engine.state_dict()["techniques"]["BudgetedActivations"]["chosen"]


def test_the_gradient_has_less_noise_than_with_uniform_bits_of_as_many_bytes():
    def distance(spec: Any) -> tuple[float, int]:
        model = net()
        images, labels = batch()
        found = []
        with Engine(model, SGD(model.parameters(), lr=0.0), recipe=spec) as engine:
            for _ in range(9):
                with engine.autocast():
                    loss = cross_entropy(engine.model(images), labels)
                taken = sum(each.packed.nbytes for each in saved() if each.packed)
                engine.backward(loss)
                found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
                engine.step()
        draws = torch.stack(found[1:])  # the first one measures
        return draws.var(0).sum().item(), taken

    uniform, of_uniform = distance("fp32+act3")
    chosen, of_chosen = distance({"base": "fp32", "activation_budget": 0.11})
    assert of_chosen <= of_uniform
    assert chosen < 0.8 * uniform
