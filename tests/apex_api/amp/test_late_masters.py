"""Master weights made late, at the first step, from what a parameter was cast from."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfstep.apex.amp.late_masters import LateMasterWeights
from halfstep.mechanisms.params.technique import ParameterFormat


def late(model, optimizer):
    masters = LateMasterWeights(torch.float16)
    masters.prepare([model], [optimizer])
    ParameterFormat("fp16").prepare([model], [optimizer])
    return masters


def test_late_masters_are_made_by_adopt_from_what_was_cast():
    model = nn.Linear(3, 2)
    exact = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    masters = late(model, optimizer)
    assert optimizer.param_groups[0]["params"] == [model.weight, model.bias]
    assert torch.equal(model.state_dict()["weight"], exact)
    masters.adopt(optimizer)
    weight, bias = optimizer.param_groups[0]["params"]
    assert torch.equal(weight, exact)
    masters.adopt(optimizer)
    assert optimizer.param_groups[0]["params"][1] is bias


@pytest.mark.parametrize("how", ["loaded", "written"])
def test_late_masters_follow_what_came_in_between(how):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    masters = late(model, optimizer)
    weight = torch.full((2, 3), 1 / 3)
    if how == "loaded":
        model.load_state_dict({"weight": weight, "bias": torch.zeros(2)})
    else:
        with torch.no_grad():
            model.weight.copy_(weight)
    expected = weight if how == "loaded" else weight.half().float()
    assert torch.equal(model.state_dict()["weight"], expected)
    masters.adopt(optimizer)
    assert torch.equal(optimizer.param_groups[0]["params"][0], expected)
