"""The small ResNet against its layers written out."""

import pytest
import torch
from torch.nn import functional

from halfstep.errors import UserError
from halfstep.train.build import models
from halfstep.train.build.resnet9 import ResNet9
from halfstep.train.config.model import ModelConfig


def test_it_is_eight_convolutions_with_two_residual_blocks():
    torch.manual_seed(0)
    model = ResNet9(5, channels=(4, 8, 8, 16)).eval()
    convolutions = [each.weight for each in model.modules() if isinstance(each, torch.nn.Conv2d)]
    assert len(convolutions) == 8

    def step(images, number):
        # A BatchNorm with its first statistics divides by the root of 1 + eps.
        return functional.conv2d(images, convolutions[number], padding=1).div(1.00001**0.5).relu()

    images = torch.randn(3, 3, 32, 32)
    found = functional.max_pool2d(step(step(images, 0), 1), 2)
    found = found + step(step(found, 2), 3)
    found = functional.max_pool2d(step(found, 4), 2)
    found = functional.max_pool2d(step(found, 5), 2)
    found = found + step(step(found, 6), 7)
    wanted = functional.linear(found.amax((2, 3)), model.head.weight) / 8
    assert torch.allclose(model(images), wanted, atol=1e-5)


def test_a_config_names_it_and_it_has_no_weights_to_load():
    given = {"classes": 7, "image_shape": (1, 32, 32)}
    model = models.build(ModelConfig(name="halfstep:resnet9", channels_last=True), **given)
    assert isinstance(model, ResNet9)
    assert model.head.out_features == 7
    assert model.prep[0].weight.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(UserError, match=r"has no published weights; write .*model\.pretrained"):
        models.build(ModelConfig(name="halfstep:resnet9", pretrained=True), **given)
