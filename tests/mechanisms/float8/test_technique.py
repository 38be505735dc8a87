"""FP8 layers: which are taken, what they compute, and that they are given back."""

from __future__ import annotations

import copy

import pytest
import torch
from timm.layers import Conv2dSame, ScaledStdConv2d
from torch import nn
from torch.utils.checkpoint import checkpoint

from halfstep.engine import Engine
from halfstep.mechanisms.float8.scales import HISTORY, DelayedScales
from halfstep.mechanisms.float8.technique import Float8Layers


def opened(model: nn.Module, scaling="dynamic") -> Float8Layers:
    technique = Float8Layers(scaling)
    technique.prepare([model], [])
    return technique


@pytest.mark.parametrize(
    ("layer", "taken"),
    [
        (nn.Linear(32, 16), True),
        (nn.Linear(32, 10), False),
        (nn.Conv2d(16, 32, 3), True),
        (nn.Conv2d(3, 32, 3), False),
        (nn.Conv2d(32, 32, 3, groups=32), False),
        (nn.Conv1d(16, 16, 3), True),
        (nn.ConvTranspose2d(16, 16, 3), False),
        (nn.LayerNorm(16), False),
        (nn.MultiheadAttention(16, 2).out_proj, False),
    ],
)
def test_layers_that_tensor_cores_could_take_are_taken(layer, taken) -> None:
    formats = opened(nn.Sequential(layer)).layer_formats()
    assert (layer in formats and formats[layer].how == "rehearsed") == taken


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(16, 16, 4, padding="same", stride=1),
        nn.Conv2d(16, 16, 3, padding="valid", dilation=2),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
        Conv2dSame(16, 16, 3, stride=2),
        ScaledStdConv2d(16, 16, 3),
        nn.Conv3d(16, 16, 2, groups=1),
        nn.Conv1d(16, 16, 3, stride=2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_any_way_of_calling_a_convolution_is_computed_in_fp8(layer) -> None:
    torch.manual_seed(0)
    images = torch.randn(2, 16, *[7] * (layer.weight.dim() - 2))
    exact = layer(images).detach()
    technique = opened(layer)
    rounded = layer(images).detach()
    assert rounded.shape == exact.shape
    error = float((rounded - exact).norm() / exact.norm())
    assert 0.005 < error < 0.08
    if layer.padding_mode == "zeros":  # torch wants a batch for the others
        assert torch.allclose(layer(images[0]), layer(images[:1])[0])
    technique.close()
    assert torch.equal(layer(images), exact)


def test_layers_get_their_class_back_and_keep_their_state() -> None:
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    before, names = copy.deepcopy(model.state_dict()), list(dict(model.named_modules()))
    technique = opened(model, "delayed")
    assert isinstance(model[0], nn.Linear)
    assert type(model[0]) is not nn.Linear
    assert type(model[2]) is nn.Linear
    assert model.state_dict().keys() == before.keys()
    technique.close()
    assert [type(module) for module in model] == [nn.Linear, nn.ReLU, nn.Linear]
    assert list(dict(model.named_modules())) == names
    assert not hasattr(model[0], "_computes")


def test_a_deep_copy_computes_on_its_own_weights() -> None:
    layer = nn.Linear(32, 16)
    technique = opened(layer)
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        layer.weight.zero_()
    technique.close()
    assert twin(torch.ones(1, 32)).abs().sum() > 0


def test_under_autocast_outputs_are_in_its_format() -> None:
    layer = nn.Linear(32, 16)
    opened(layer)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(4, 32)).dtype == torch.bfloat16
    assert layer(torch.randn(4, 32)).dtype == torch.float32


def test_a_delayed_scale_is_that_of_the_steps_before() -> None:
    scales = DelayedScales()

    def largest(value: float) -> float:
        return float(scales.largest("input", torch.tensor([value]), training=True))

    assert largest(2.0) == 2  # Nothing is known: its own.
    assert largest(5.0) == 5
    scales.advance()
    assert largest(100.0) == 5
    scales.advance()
    assert largest(1.0) == 100
    for _ in range(HISTORY - 1):
        scales.advance()
        assert largest(1.0) == 100
    scales.advance()
    assert largest(0.1) == 1


def test_values_that_are_not_finite_leave_no_trace_in_the_history() -> None:
    scales = DelayedScales()
    for value in (4.0, float("inf"), float("nan")):
        scales.largest("gradient", torch.tensor([value]), training=True)
        scales.advance()
    assert float(scales.largest("gradient", torch.tensor([1.0]), training=True)) == 4


def test_validation_does_not_move_the_scales() -> None:
    model = nn.Linear(32, 16)
    with Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe="fp8-delayed") as engine:
        step(engine, 1.0)
        with engine.evaluating():
            engine.model(torch.full((2, 32), 1000.0))
        step(engine, 1.0)
        past = engine.state_dict()["techniques"]["Float8Layers"]["histories"][0]["past"]
        assert past["input"].max() == 1


def step(engine: Engine, value: float) -> None:
    with engine.autocast():
        loss = engine.model(torch.full((2, 32), value)).float().mean()
    engine.backward(loss)
    engine.step()


def test_what_is_computed_again_is_the_same() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(32, 16)
    technique = opened(layer, "delayed")
    inputs = torch.randn(4, 32, requires_grad=True)
    layer(inputs.detach() * 2).sum().backward()
    technique.after_step(None)
    layer.zero_grad()
    plain = torch.autograd.grad(layer(inputs).square().sum(), [inputs, layer.weight])
    again = torch.autograd.grad(
        checkpoint(layer, inputs, use_reentrant=False).square().sum(), [inputs, layer.weight]
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
