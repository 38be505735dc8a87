"""Assertions for other projects' tests: healthy models pass, and each kind of break is named."""

import pytest
import torch
from torch import nn

from halfstep.testing import assert_survives


def batches(count=4, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(8, 6, generator=generator) * scale for _ in range(count)]
    return [(values, values[:, :3].argmax(1)) for values in inputs]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


class Attends(nn.Module):
    """Weights its hidden features by a softmax without the usual shift: exp overflows in fp16."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, inputs):
        hidden = self.first(inputs)
        weights = torch.exp(hidden * 12)
        return self.last(hidden * weights / weights.sum(1, keepdim=True))


@pytest.mark.parametrize("recipe", ["fp16", "bf16", {"params": "bf16", "update": "stochastic"}])
def test_a_healthy_model_survives_and_stays_as_it_was(recipe):
    model = net()
    before = [param.detach().clone() for param in model.parameters()]
    state = torch.random.get_rng_state()
    assert_survives(model, batches(), recipe=recipe)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(param.grad is None for param in model.parameters())


def test_an_overflow_fails_with_its_diagnosis():
    assert_survives(Attends(), batches(), recipe="fp16")
    with pytest.raises(AssertionError, match="does not survive half: the loss is not") as caught:
        assert_survives(Attends(), batches(), recipe="half")
    assert "torch.exp(hidden * 12)" in str(caught.value)


def test_losses_that_drift_from_fp32_fail():
    with pytest.raises(AssertionError, match=r"the mean loss is .* in fp32"):
        assert_survives(net(), batches(), recipe="bf16", tolerance=0.0)


def test_a_step_that_is_skipped_late_fails_though_its_loss_is_finite():
    def loss(model, batch):
        inputs, labels, last = batch
        value = nn.functional.cross_entropy(model(inputs), labels)
        # The square root of 0 has an infinite derivative.
        return value + (model[2].bias.sum() * 0).sqrt() if last else value

    examples = [(x, y, number == 2) for number, (x, y) in enumerate(batches(4))]
    with pytest.raises(AssertionError, match="step 3 was skipped"):
        assert_survives(net(), examples, recipe="fp16", loss=loss)


def test_an_own_loss_and_optimizer_are_used():
    seen = []

    def loss(model, batch):
        seen.append(batch)
        return nn.functional.mse_loss(model(batch["x"]).float(), batch["y"])

    def optimizer(params):
        return torch.optim.AdamW(params, lr=1e-3)

    examples = [{"x": x, "y": x[:, :3]} for x, _ in batches(3)]
    assert_survives(net(), iter(examples), recipe="fp16", loss=loss, optimizer=optimizer)
    assert len(seen) == 6


def test_no_batches_are_refused():
    with pytest.raises(ValueError, match="batches is empty"):
        assert_survives(net(), [])
