"""LAMB under recipes; its rule is checked against float64 in tests/apex_api/optimizers."""

import pytest
import torch
from torch import nn

from halfstep import Engine
from halfstep.techniques.lamb import LAMB
from halfstep.techniques.novograd import NovoGrad


@pytest.mark.parametrize(("optimizer", "lr"), [(LAMB, 0.05), (NovoGrad, 0.5)])
@pytest.mark.parametrize("recipe", ["fp32", "o2", "half"])
def test_training_goes_down_under_a_recipe(optimizer, lr, recipe):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    images, labels = torch.randn(32, 6), torch.randint(0, 3, (32,))
    given = optimizer(model.parameters(), lr=lr, eps=1e-3)
    losses = []
    with Engine(model, given, recipe=recipe) as engine:
        for _ in range(30):
            with engine.autocast():
                loss = nn.functional.cross_entropy(engine.model(images).float(), labels)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("optimizer", [LAMB, NovoGrad])
def test_parameters_without_a_gradient_stay(optimizer):
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    given = optimizer([used, unused])
    used.grad = torch.ones(2)
    given.step()
    assert torch.equal(unused, torch.ones(2))
    assert unused not in given.state
    optimizer([used]).step()
    assert not torch.equal(used, torch.ones(2))
