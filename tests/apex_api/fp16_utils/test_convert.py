"""Models in half precision by hand."""

import torch
from torch import nn

from halfstep.apex import fp16_utils


def net():
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.BatchNorm2d(2, affine=False), nn.Flatten()
    )


def formats(model):
    tensors = (*model.named_parameters(), *model.named_buffers())
    return {n: t.dtype for n, t in tensors if t.is_floating_point()}


def test_a_network_is_half_but_for_affine_batchnorm():
    for model in (fp16_utils.network_to_half(net())[1], fp16_utils.FP16Model(net()).network):
        found = formats(model)
        assert {n for n, dtype in found.items() if dtype == torch.float32} == {
            *("1.weight", "1.bias", "1.running_mean", "1.running_var")
        }
        assert set(found.values()) == {torch.float16, torch.float32}


def test_inputs_are_cast_and_outputs_stay_half():
    x = torch.randn(2, 1, 5, 5)
    assert fp16_utils.network_to_half(net())(x).dtype == torch.float16
    assert fp16_utils.FP16Model(net())(x).dtype == torch.float16
    assert fp16_utils.tofp16()(x).dtype == torch.float16


def test_batchnorm_is_put_back_into_fp32():
    model = net().half()
    assert fp16_utils.BN_convert_float(model) is model
    assert model[1].weight.dtype == model[1].running_mean.dtype == torch.float32
    assert model[0].weight.dtype == model[2].running_mean.dtype == torch.float16


def test_a_module_is_converted_without_its_children_and_with_its_gradients():
    model = nn.Linear(2, 1)
    model.child = nn.Linear(1, 1)
    model.register_buffer("count", torch.zeros(1, dtype=torch.long))
    model.weight.grad = torch.ones(1, 2)
    weight = model.weight
    fp16_utils.convert_module(model, torch.float16)
    assert model.weight is weight
    assert model.weight.grad.dtype == torch.float16
    assert model.child.weight.dtype == torch.float32
    assert model.count.dtype == torch.long


def test_a_converted_rnn_trains():
    model = fp16_utils.convert_network(nn.LSTM(3, 2), torch.float16)
    out, _ = model(torch.randn(4, 1, 3).half())
    out.float().sum().backward()
    assert model.weight_ih_l0.grad.dtype == torch.float16
