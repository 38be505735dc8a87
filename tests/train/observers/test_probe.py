"""Probes: what they measure, and that a run with them is the same run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from halfstep.engine import Engine
from halfstep.train.observers.probe import Probe


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.Dropout(0.1), nn.Flatten(), nn.Linear(576, 16)
    )


def trained(recipe: str, batch, *, probing: bool, steps: int = 4):
    """Return the weights after some steps, with a look between them or without."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, eps=1e-4)
    torch.manual_seed(1)
    with Engine(model, optimizer, recipe=recipe) as engine:
        # Larger than what the run sees, so that scales would notice.
        probe = Probe(engine, network(), 3 * batch[0], batch[1])
        seen = []
        for _ in range(steps):
            with engine.autocast():
                loss = cross_entropy(engine.model(batch[0]), batch[1])
            engine.backward(loss)
            engine.step()
            if probing:
                seen.append((probe.gradients(), probe.formats("fp32"), probe.held()))
        return copy.deepcopy(model.state_dict()), seen


@pytest.fixture
def batch(digits):
    return digits.batches(16, 1)[0]


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "o2", "bf16-sr", "fp8-delayed", "act2"])
def test_a_probed_run_is_the_same_run(recipe, batch) -> None:
    plain, _ = trained(recipe, batch, probing=False)
    probed, _ = trained(recipe, batch, probing=True)
    assert all(torch.equal(plain[name], value) for name, value in probed.items())


def test_gradients_of_single_precision_are_its_own(batch) -> None:
    _, seen = trained("fp32", batch, probing=True, steps=1)
    assert seen[0][0]["gradient_cosine"] == pytest.approx(1, abs=1e-9)
    assert seen[0][0]["gradient_error"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(("recipe", "least", "most"), [("tf32", 1e-6, 2e-2), ("fp8", 1e-2, 0.6)])
def test_coarser_formats_are_further_away(recipe, least, most, batch) -> None:
    _, seen = trained(recipe, batch, probing=True, steps=1)
    assert least < seen[0][0]["gradient_error"] < most
    assert seen[0][0]["gradient_cosine"] < 1


def test_memory_is_what_the_tensors_add_up_to(batch) -> None:
    held = {name: trained(name, batch, probing=True, steps=4)[1][-1][2] for name in ("fp32", "o2")}
    params = sum(param.numel() for param in network().parameters())
    statistics = 2 * 16 * 4 + 8
    assert held["fp32"].parameters == 4 * params + statistics
    assert held["fp32"].gradients == 4 * params
    # Two moments a parameter and a step count for each of the six tensors.
    assert held["fp32"].optimizer == 8 * params + 6 * 4
    half = params - 32  # BatchNorm's own stay fp32
    assert held["o2"].parameters == 2 * half + 4 * 32 + statistics
    assert held["o2"].gradients == 4 * params
    assert held["o2"].optimizer == 8 * params + 6 * 4 + 4 * half
    assert held["o2"].activations < 0.75 * held["fp32"].activations
    assert held["o2"].compressed is None


def test_compressed_activations_are_counted_apart(batch) -> None:
    images = batch[0].repeat(8, 1, 1, 1), batch[1].repeat(8)
    exact, packed = (
        trained(name, images, probing=True, steps=1)[1][0][2] for name in ("fp32", "act2")
    )
    hidden = 128 * 16 * 6 * 6
    # Inputs of the convolution, BatchNorm and the linear layer in 2 bits and 1/8 of one for their
    # levels; of dropout a bit for each element.
    assert packed.compressed == (images[0].numel() + 2 * hidden) * 2.125 / 8 + hidden / 8
    assert packed.activations < 10_000  # logits, labels and statistics
    assert exact.compressed is None
    assert exact.activations > 4 * 3 * hidden
    assert packed.optimizer == exact.optimizer
