"""Lists of fp32 masters, and copies in both directions."""

import pytest
import torch
from torch import nn

from halfstep.apex import fp16_utils


@pytest.mark.parametrize("flat", [False, True])
def test_a_step_by_hand_is_that_of_fp32(flat):
    torch.manual_seed(0)
    single = nn.Linear(3, 2)
    half = nn.Linear(3, 2).half()
    half.load_state_dict(single.state_dict())
    single.load_state_dict(half.state_dict())
    params, masters = fp16_utils.prep_param_lists(half, flat_master=flat)
    assert len(masters) == (1 if flat else 2)
    assert {m.dtype for m in masters} == {torch.float32}
    optimizer = torch.optim.SGD(masters, 0.5)
    expected = torch.optim.SGD(single.parameters(), 0.5)
    x = torch.randn(4, 3).half()
    half(x).float().pow(2).mean().backward()
    single(x.float()).pow(2).mean().backward()
    fp16_utils.model_grads_to_master_grads(params, masters, flat_master=flat)
    optimizer.step()
    expected.step()
    fp16_utils.master_params_to_model_params(params, masters, flat_master=flat)
    for param, reference in zip(half.parameters(), single.parameters(), strict=True):
        torch.testing.assert_close(param.float(), reference, rtol=2e-3, atol=2e-3)


def test_frozen_parameters_have_no_master():
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(requires_grad=False)
    params, masters = fp16_utils.prep_param_lists(model)
    assert params == [model.weight]
    assert len(masters) == 1
    assert masters[0].requires_grad


def test_a_missing_gradient_stays_missing():
    params, masters = fp16_utils.prep_param_lists(nn.Linear(1, 1).half())
    masters[0].grad = torch.ones(1, 1)
    fp16_utils.model_grads_to_master_grads(params, masters)
    assert masters[0].grad is None


def test_a_flat_master_needs_one_format():
    model = nn.Sequential(nn.Linear(1, 1).half(), nn.Linear(1, 1))
    with pytest.raises(TypeError, match=r"float16, torch.float32.*flat_master=False"):
        fp16_utils.prep_param_lists(model, flat_master=True)


def test_numbers_come_out_of_tensors():
    assert fp16_utils.to_python_float(torch.tensor([2.5])) == 2.5
    assert fp16_utils.to_python_float([3.0, 4.0]) == 3.0


def test_clip_grad_norm_is_torchs():
    param = nn.Parameter(torch.ones(4))
    param.grad = torch.ones(4)
    assert fp16_utils.clip_grad_norm([param], 1.0) == 2.0
    assert param.grad.norm().item() == pytest.approx(1.0)
