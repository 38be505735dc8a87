"""Loss scalers driven by hand."""

import torch
from torch import nn

from halfstep.apex.fp16_utils import DynamicLossScaler, LossScaler


def test_a_static_scale_stays_and_looks_at_nothing():
    scaler = LossScaler(8)
    param = nn.Parameter(torch.ones(1))
    scaler.backward(param.sum())
    assert param.grad.item() == 8.0
    param.grad.fill_(float("nan"))
    assert not scaler.has_overflow([param])
    scaler.update_scale(overflow=True)
    assert scaler.loss_scale == 8
    assert scaler.scale_gradient(None, (torch.ones(1),), None)[0].item() == 8.0


def test_a_dynamic_scale_backs_off_to_one_and_grows_by_its_window():
    scaler = DynamicLossScaler(init_scale=4, scale_window=3)
    scales = []
    for overflow in (True, True, True, False, False, False, False, False, False):
        scaler.update_scale(overflow)
        scales.append(scaler.loss_scale)
    assert scales == [2, 1, 1, 1, 1, 2, 2, 2, 4]
    assert DynamicLossScaler().loss_scale == 2**32


def test_a_dynamic_scale_finds_inf_and_nan():
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    scaler = DynamicLossScaler()
    one.grad = torch.ones(2)
    assert not scaler.has_overflow([one, two])
    for bad in (float("inf"), float("nan")):
        one.grad[0] = bad
        assert scaler.has_overflow([one, two])
