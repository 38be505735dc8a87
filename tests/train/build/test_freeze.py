import copy

import pytest
import timm
import torch
from torch import nn

from halfstep.errors import UserError
from halfstep.train.build.freeze import freeze


@pytest.fixture
def model():
    return timm.create_model(
        "resnet18", num_classes=3, in_chans=1, layers=[1, 1, 1, 1], channels=[8, 8, 8, 8]
    )


def frozen(model):
    return {name for name, param in model.named_parameters() if not param.requires_grad}


def test_module_is_frozen_with_all_that_is_in_it(model):
    freeze(model, ("layer1", "bn1"))
    names = {name for name, _ in model.named_parameters()}
    assert frozen(model) == {n for n in names if n.startswith(("layer1.", "bn1."))}


def test_parameters_are_frozen_by_pattern(model):
    freeze(model, ("*.bias",))
    assert frozen(model) == {n for n, _ in model.named_parameters() if n.endswith(".bias")}


def test_frozen_norm_layers_stay_as_they_are_in_training(model):
    freeze(model, ("layer[1-2]", "bn1"))
    model.eval()
    model.train()
    before = copy.deepcopy(model.state_dict())
    model(torch.rand(4, 1, 32, 32))
    moved = {
        name.rpartition(".")[0]
        for name, value in model.state_dict().items()
        if not torch.equal(value, before[name])
    }
    norms = {name for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert moved == {n for n in norms if n.startswith(("layer3", "layer4"))}
    assert model.training
    assert model.layer3.training
    assert not model.layer1[0].bn1.training


def test_a_copy_of_a_frozen_model_is_frozen_by_itself(model):
    freeze(model, ("bn1",))
    twin = copy.deepcopy(model).train()
    twin(torch.rand(4, 1, 32, 32))
    assert not twin.bn1.training
    assert torch.equal(twin.bn1.running_mean, model.bn1.running_mean)


def test_pattern_that_names_nothing_is_refused_with_the_closest_name(model):
    with pytest.raises(
        UserError, match=r"'layer5'.*did you mean 'layer\d'\?; the outermost: conv1"
    ):
        freeze(model, ("layer5",))
