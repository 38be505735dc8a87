"""Parameter formats: what is cast, what stays, and how a model is still called."""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from halfstep.mechanisms.params.technique import ParameterFormat, is_norm
from halfstep.recipe import recipe


class Pair(NamedTuple):
    logits: torch.Tensor
    index: torch.Tensor


class Caller(nn.Module):
    """Takes a nested input by name and returns a nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4))
        self.register_buffer("places", torch.arange(4), persistent=False)

    def forward(self, batch: dict[str, torch.Tensor], *, offset: torch.Tensor) -> Pair:
        assert batch["x"].dtype == offset.dtype == self.layer.weight.dtype
        assert batch["index"].dtype == torch.int64
        return Pair(self.layer(batch["x"]) + self.table + offset, batch["index"])


class RMSNormByHand(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32
        return x * x.square().mean(-1, keepdim=True).rsqrt() * self.weight


@pytest.mark.parametrize("outputs", [None, "fp32"])
@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_floating_tensors_are_cast_wherever_they_are(name, dtype, outputs) -> None:
    model = Caller()
    ParameterFormat(name, outputs=outputs).prepare([model], [])
    assert {tensor.dtype for tensor in model.parameters()} == {dtype}
    assert model.table.dtype == dtype
    assert model.places.dtype == torch.int64
    batch = {"x": torch.ones(2, 4), "index": torch.tensor([1])}
    output = model(batch, offset=torch.ones(4))
    assert isinstance(output, Pair)
    assert output.logits.dtype == (torch.float32 if outputs else dtype)
    assert output.index.dtype == torch.int64
    assert batch["x"].dtype == torch.float32


def test_identity_and_ties_are_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    before = list(model.parameters())
    ParameterFormat("bf16").prepare([model], [])
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert model[1].weight is model[0].weight


NORMS = {
    "batch": (nn.BatchNorm2d(4), (2, 4, 3, 3)),
    "layer": (nn.LayerNorm(4), (2, 4)),
    "group": (nn.GroupNorm(2, 4), (2, 4, 3)),
    "rms": (nn.RMSNorm(4), (2, 4)),
    "instance": (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (2, 4, 3, 3)),
    "by hand": (RMSNormByHand(4), (2, 4)),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", NORMS)
def test_norms_in_fp32_compute_in_fp32_on_half_inputs(kind: str, training: bool) -> None:
    norm, shape = NORMS[kind]
    exact = copy.deepcopy(norm).train(training)
    model = nn.Sequential(copy.deepcopy(norm)).train(training)
    ParameterFormat("fp16", own_formats=recipe("half-bn32").own_formats).prepare([model], [])
    stored = [*model.parameters(), *model.buffers()]
    assert {t.dtype for t in stored if t.is_floating_point()} == {torch.float32}
    inputs = torch.randn(shape, generator=torch.Generator().manual_seed(0)).half()
    output = model(inputs)
    assert output.dtype == torch.float16
    assert torch.equal(output, exact(inputs.float()).half())
    output.float().square().sum().backward()
    assert all(param.grad.dtype == torch.float32 for param in model.parameters())


def test_what_is_a_norm_and_what_only_sounds_like_one() -> None:
    assert all(is_norm(norm) for norm, _ in NORMS.values())
    assert is_norm(nn.SyncBatchNorm(4))
    assert not is_norm(nn.LocalResponseNorm(2))
    assert not is_norm(spectral_norm(nn.Linear(4, 4)))
    assert not is_norm(nn.Linear(4, 4))
    assert not is_norm(type("NormalizedLinear", (nn.Linear,), {})(4, 4))


def test_state_dict_is_fp32_as_long_as_the_technique_is_open() -> None:
    model = Caller()
    technique = ParameterFormat("bf16")
    technique.prepare([model], [])
    state = model.state_dict()
    assert {value.dtype for value in state.values()} == {torch.float32}
    assert state.keys() == Caller().state_dict().keys()
    assert "places" not in state
    before = {name: tensor.dtype for name, tensor in Caller().state_dict().items()}
    technique.close()
    assert {name: tensor.dtype for name, tensor in model.state_dict().items()} == before


def test_fp32_widens_a_model_and_leaves_its_calls_alone() -> None:
    model = nn.Linear(2, 2).bfloat16()
    technique = ParameterFormat("fp32")
    technique.prepare([model], [])
    assert not technique.reshapes_params
    assert model.weight.dtype == torch.float32
    with pytest.raises(RuntimeError):
        model(torch.ones(1, 2, dtype=torch.float64))


@pytest.mark.parametrize("format_", ["bf16", "fp32"])
def test_weights_of_a_recurrent_layer_are_put_together_after_each_cast(
    format_, monkeypatch
) -> None:
    """CuDNN copies weights that lie apart in every forward pass, and warns."""
    model, seen = nn.Sequential(nn.LSTM(2, 2), nn.GRU(2, 2)), []
    monkeypatch.setattr(
        nn.RNNBase, "flatten_parameters", lambda rnn: seen.append((type(rnn), *dtypes(rnn)))
    )
    technique = ParameterFormat(format_)
    technique.prepare([model], [])
    technique.close()
    halves, singles = (
        [(nn.LSTM, dtype), (nn.GRU, dtype)] for dtype in (torch.bfloat16, torch.float32)
    )
    assert seen == ([*halves, *singles] if format_ == "bf16" else [])


def dtypes(module: nn.Module) -> set[torch.dtype]:
    return {param.dtype for param in module.parameters()}


def test_a_deep_copy_casts_its_own_inputs() -> None:
    model = Caller()
    ParameterFormat("fp16", outputs="fp32").prepare([model], [])
    twin = copy.deepcopy(model)
    nn.init.zeros_(twin.layer.weight)
    output = twin({"x": torch.ones(1, 4), "index": torch.tensor([1])}, offset=torch.zeros(4))
    assert output.logits.dtype == torch.float32
    assert model.layer.weight.any()
