"""The function that a change names is the one that the program computes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from doctor.loops import batches
from halfstep.doctor import Watch, diagnose
from halfstep.doctor.record.source import (
    scaled_before_product,
    with_converted_divisor,
    with_converted_receiver,
)


def advice_for(loss) -> tuple[str, str]:
    """Return the cause and the change for a loss of a linear model that is not finite."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Watch() as watch:
        for images, labels in batches(2):
            optimizer.zero_grad()
            loss(model(images), labels).backward()
            optimizer.step()
    verdict = diagnose(watch.close()).verdicts[0]
    return verdict.code, "\n".join(verdict.finding.change)


def weighted(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    weights = torch.zeros(len(labels))
    return (outputs.square().sum(1) * weights).sum() / weights.sum()


def probabilities(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -(outputs * 400).softmax(1).log()[torch.arange(len(labels)), labels].mean()


@pytest.mark.parametrize(
    ("loss", "cause", "named", "not_named"),
    [
        (weighted, "NOTHING_TO_AVERAGE", "weights.sum().clamp(min=1)", "cross_entropy"),
        (
            lambda outputs, _: outputs.relu().log().mean(),
            "LOG_OF_ZERO",
            "outputs.relu().float().clamp(min=1e-6).log()",
            "cross_entropy",
        ),
        (probabilities, "LOG_OF_ZERO", "functional.cross_entropy(", "clamp"),
        (
            lambda outputs, _: (1 + (outputs * 400).exp()).log().mean(),
            "EXP_OVERFLOW",
            "softplus(x)",
            "softmax",
        ),
        (
            lambda outputs, _: (outputs * 400).exp().sum(1).log().mean(),
            "EXP_OVERFLOW",
            "logsumexp(x, dim)",
            "softplus",
        ),
        (
            lambda outputs, _: functional.relu((outputs * 400).exp()).mean(),
            "EXP_OVERFLOW",
            "clamp(max=87)",
            "softmax",
        ),
    ],
)
def test_the_function_that_is_named_is_the_one_that_is_meant(loss, cause, named, not_named) -> None:
    code, change = advice_for(loss)
    assert code == cause
    assert named in change
    assert not_named not in change


def test_logits_of_attention_are_scaled_before_the_product() -> None:
    assert scaled_before_product("scores = q @ k.T / math.sqrt(d)") == (
        "scores = (q / math.sqrt(d)) @ k.T"
    )
    assert scaled_before_product("scores = q @ k.T") is None
    assert scaled_before_product("scores = (q @ k.T) * scale @ v") is None


def test_receivers_and_divisors_are_converted() -> None:
    assert with_converted_receiver("y = (a + b).clamp(max=1)", "clamp", ".float()") == (
        "y = (a + b).float().clamp(max=1)"
    )
    assert with_converted_receiver("y = torch.clamp(a, max=1)", "clamp", ".float()") is None
    assert with_converted_divisor("y = a / b", ".clamp(min=1)") == "y = a / b.clamp(min=1)"
    assert with_converted_divisor("y = a / len(b)", ".clamp(min=1)") is None
    assert with_converted_divisor("y = a / 2", ".clamp(min=1)") is None
