"""fp16 accumulation through the engine: over cpu_half's kernels, and given back."""

from __future__ import annotations

import torch
from torch import nn

from halfstep.engine import Engine
from halfstep.kernels.products import ON


def summed(engine: Engine) -> float:
    """2048 and then sixty-three ones, one to a chunk, which an fp16 accumulator loses."""
    inputs = torch.zeros(1, 1024)
    inputs[0, ::16] = 1
    inputs[0, 0] = 2048
    with engine.autocast():
        return float(engine.model(inputs)[0, 0])


def engine_for(recipe: str) -> Engine:
    layer = nn.Linear(1024, 1, bias=False)
    nn.init.ones_(layer.weight)
    return Engine(layer, torch.optim.SGD(layer.parameters(), 0.1), recipe=recipe)


def test_the_accumulator_of_one_recipe_ends_with_its_engine() -> None:
    with engine_for("fp16") as plain:
        assert summed(plain) == 2112
        with engine_for("fp16-acc16") as narrow:
            assert summed(narrow) == 2048
        assert summed(plain) == 2112
    assert not ON["cpu"].registered
