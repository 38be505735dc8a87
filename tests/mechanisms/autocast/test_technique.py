"""Autocast regions are torch's own, and a fresh one each time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from halfstep.engine import Engine
from halfstep.mechanisms.autocast.technique import Autocast


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_products_are_computed_in_the_format_and_the_region_ends(name, dtype) -> None:
    layer = nn.Linear(3, 3)
    with Autocast(name).forward(torch.device("cpu")):
        assert torch.get_autocast_dtype("cpu") == dtype
        assert layer(torch.ones(1, 3)).dtype == dtype
    assert layer(torch.ones(1, 3)).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_regions_of_one_technique_nest() -> None:
    technique, cpu = Autocast("bf16"), torch.device("cpu")
    with technique.forward(cpu):
        with technique.forward(cpu):
            pass
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")


def test_no_cast_of_a_weight_outlives_its_update() -> None:
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    with Engine(layer, SGD(layer.parameters(), lr=0.5), recipe="bf16") as engine:
        seen = []
        for _ in range(3):
            with engine.autocast():
                output = engine.model(torch.ones(1, 1))
            seen.append(float(output.detach()))
            engine.backward(output.float().sum())
            engine.step()
    assert seen == [1.0, 0.5, 0.0]
