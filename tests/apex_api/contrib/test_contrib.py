"""The faces of `apex.contrib` do what their counterparts in torch and `fp16_utils` do."""

import pytest
import torch
from torch import nn

from halfstep.apex import fp16_utils
from halfstep.apex.contrib.clip_grad import clip_grad_norm_
from halfstep.apex.contrib.optimizers import FP16_Optimizer
from halfstep.apex.contrib.xentropy import SoftmaxCrossEntropyLoss
from halfstep.apex.parallel import SyncBatchNorm, optimized_sync_batchnorm


def test_gradients_are_clipped_to_their_norm():
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([3.0, 4.0])
    assert clip_grad_norm_([param], 1.0).item() == 5.0
    torch.testing.assert_close(param.grad, torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_each_row_against_its_definition(smoothing):
    torch.manual_seed(0)
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 0, 4, 2])
    losses = SoftmaxCrossEntropyLoss.apply(logits, labels, smoothing, 0)
    logs = torch.log_softmax(logits, 1)
    picked = logs[torch.arange(4), labels]
    expected = -(1 - smoothing) * picked - smoothing * logs.mean(1)
    expected = torch.where(labels == 0, 0.0, expected)
    torch.testing.assert_close(losses, expected)
    found = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    torch.testing.assert_close(found, torch.autograd.grad(expected.sum(), logits))


def test_half_logits_give_half_losses_unless_asked_for():
    logits, labels = torch.randn(3, 4).half(), torch.tensor([1, 2, 3])
    assert SoftmaxCrossEntropyLoss.apply(logits, labels).dtype == torch.float16
    assert SoftmaxCrossEntropyLoss.apply(logits, labels, half_to_float=True).dtype == torch.float32


def trained(wrapper):
    torch.manual_seed(0)
    model = nn.Linear(4, 2).half()
    optimizer = wrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.zero_grad()
        optimizer.backward(model(torch.ones(2, 4).half()).float().square().mean())
        optimizer.step()
    return model.weight, optimizer


def test_the_wrapper_trains_as_that_of_fp16_utils():
    contrib, optimizer = trained(lambda sgd: FP16_Optimizer(sgd, 128.0, verbose=False))
    plain, _ = trained(lambda sgd: fp16_utils.FP16_Optimizer(sgd, 128.0, verbose=False))
    assert torch.equal(contrib, plain)
    assert optimizer.cur_scale == 128.0


def test_a_dynamic_scale_starts_lower_than_that_of_fp16_utils():
    _, optimizer = trained(lambda sgd: FP16_Optimizer(sgd, dynamic_loss_scale=True, verbose=False))
    assert optimizer.cur_scale == 2.0**16
    with pytest.raises(SystemError, match="leave dynamic_loss_args out"):
        trained(lambda sgd: FP16_Optimizer(sgd, dynamic_loss_args={}))


def test_the_optimized_batch_norm_is_the_only_one():
    assert optimized_sync_batchnorm.SyncBatchNorm is SyncBatchNorm
