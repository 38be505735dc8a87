"""Whole models in files."""

import io

import pytest
import torch
from torch.optim import SGD

from halfstep.apex import amp

from .tiny import Net, backward, batch


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_a_whole_model_can_be_saved(level):
    model = Net()
    optimizer = SGD(model.parameters(), 0.1)
    model, optimizer = amp.initialize(
        model, optimizer, opt_level=level, verbosity=0, loss_scale=128.0
    )
    backward(model(batch()).mean(), optimizer)
    optimizer.step()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded, inputs = torch.load(file, weights_only=False), batch()
    assert torch.equal(loaded.eval()(inputs), model.eval()(inputs))
    assert {value.dtype for value in loaded.state_dict().values()} <= {torch.float32, torch.int64}
