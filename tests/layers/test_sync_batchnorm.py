"""In one process; over several, tests/apex_api/parallel compares with one on the joined batch."""

import copy

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import nn

from halfstep.layers.sync_batchnorm import SyncBatchNorm, convert


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (2, 3, 4, 4)])
def test_one_process_gets_plain_batch_norm_and_its_gradients(shape, momentum):
    generator = torch.Generator().manual_seed(0)
    plain_class = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)]
    plain = plain_class(3, momentum=momentum)
    ours = convert(copy.deepcopy(plain))
    given = torch.randn(shape, generator=generator, dtype=torch.float64)
    plain, ours = plain.double(), ours.double()
    inputs = [given.clone().requires_grad_() for _ in range(2)]
    for layer, each in zip((plain, ours), inputs, strict=True):
        layer(each).pow(3).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    torch.testing.assert_close(plain.weight.grad, ours.weight.grad)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)
    torch.testing.assert_close(plain.eval()(given), ours.eval()(given))


def test_half_inputs_are_normalized_in_fp32():
    given = torch.full((8, 1), 200.0).half() + torch.arange(8.0)[:, None].half()
    out = SyncBatchNorm(1)(given)  # squares of these overflow fp16
    assert out.dtype == torch.float16
    torch.testing.assert_close(out.float(), nn.BatchNorm1d(1)(given.float()), rtol=1e-2, atol=1e-2)


def test_conversion_leaves_other_layers_and_shares_what_it_replaces():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.InstanceNorm1d(3))
    before = list(model.parameters())
    assert convert(model) is model
    assert [type(layer).__name__ for layer in model] == [
        "Linear",
        "SyncBatchNorm",
        "InstanceNorm1d",
    ]
    assert all(old is new for old, new in zip(before, model.parameters(), strict=True))


def test_one_value_to_a_channel_is_refused():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        SyncBatchNorm(3)(torch.ones(1, 3))


def test_the_activation_of_a_fused_batch_norm_stays():
    """timm's, which most of its models are made of."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4, act_layer=nn.SiLU)).eval()
    images = torch.randn(2, 3, 8, 8)
    wanted = model(images)
    torch.testing.assert_close(convert(model)(images), wanted)
    torch.testing.assert_close(copy.deepcopy(model)(images), wanted)


def test_a_batch_norm_that_does_more_is_refused():
    class Doubling(nn.BatchNorm2d):
        def forward(self, input):  # noqa: A002  (torch's name)
            return 2 * super().forward(input)

    with pytest.raises(TypeError, match="Doubling is a batch norm with its own forward"):
        convert(nn.Sequential(Doubling(4)))
