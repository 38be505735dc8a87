"""LAMB under recipes; its rule is checked against float64 in tests/apex_api/optimizers."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from halfstep import Engine
from halfstep.optim.lamb import LAMB
from halfstep.optim.novograd import NovoGrad


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_global_norm_is_that_of_wide_gradients_without_a_copy_of_them(dtype):
    params = [nn.Parameter(torch.ones(size, dtype=dtype)) for size in (1000, 24)]
    for param in params:
        param.grad = torch.full_like(param, 300.0)  # whose squares fp16 cannot hold
    made = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **kwargs or {})
            made.extend(tree_leaves(result))
            return result

    given = LAMB(params, max_grad_norm=3.0)
    with torch.no_grad(), Watch():
        given._start_step()
    assert given._shrink.item() == pytest.approx(300 * 32 / 3, rel=1e-6)
    assert max(each.numel() for each in made if isinstance(each, torch.Tensor)) <= len(params)
