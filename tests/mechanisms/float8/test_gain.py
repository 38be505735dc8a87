"""The table of gains: measured where measured, else predicted; and what it says of a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from halfstep.advise.predict.gpus import gpus
from halfstep.mechanisms.float8.gain import PAYS, SAMPLES, Gains, table
from halfstep.mechanisms.float8.native import NativeFloat8
from halfstep.mechanisms.float8.technique import Float8Layers
from halfstep.recipe import recipe


def test_the_gpus_are_those_of_the_table_of_gpus():
    with_units = {
        key: gpu
        for key, gpu in gpus().items()
        if gpu.fp8 and not gpu.architecture.startswith("cdna")
    }
    assert {*table()["gpus"]} == {*with_units}
    for key, row in table()["gpus"].items():
        gpu = with_units[key]
        assert (row["bf16"], row["fp8"], row["bandwidth"]) == (gpu.fp16, gpu.fp8, gpu.bandwidth)


def test_a_predicted_gain_is_that_of_a_roofline():
    """Against the formula of the module, written out for one shape on an H200."""
    samples, inputs, outputs = 8192, 4096, 16384
    weight, read, given = inputs * outputs, samples * inputs, samples * outputs
    bandwidth, flops = 4800e9 * 0.75, 2 * samples * weight
    in_bf16 = 3 * (flops / (989.4e12 * 0.70) + 4e-6) + 6 * weight / bandwidth + 4e-6
    casts = (6 * read + 6 * given + 12 * weight) / bandwidth + 10 * 4e-6
    in_fp8 = 3 * (flops / (1978.9e12 * 0.62) + 4e-6) + casts
    gain = Gains.named("h200").gain(samples, inputs, outputs)
    assert gain.value == pytest.approx(in_bf16 / in_fp8)
    assert gain.source == "predicted"


def test_large_layers_gain_and_small_ones_lose():
    h200 = Gains.named("h200")
    by_samples = [h200.gain(samples, 4096, 4096).value for samples in SAMPLES]
    assert by_samples == sorted(by_samples)
    assert by_samples[0] < 0.95
    fewest = h200.fewest(4096, 4096)
    assert h200.gain(fewest.samples, 4096, 4096).value >= PAYS
    assert h200.gain(fewest.samples // 2, 4096, 4096).value < PAYS
    assert h200.fewest(512, 512).samples is None
    assert str(h200.fewest(512, 512)) == "slower in FP8 up to 131072 samples (predicted)"


def test_a_measured_gain_replaces_a_predicted_one():
    row = dict(Gains.named("h200").row, measured=[[2048, 4096, 4096, 0.9], [4096, 4096, 4096, 1.3]])
    gains = Gains("h200", row)
    assert gains.gain(2048, 4096, 4096) == (0.9, "measured")
    assert gains.gain(2048, 4096, 8192).source == "predicted"
    assert str(gains.fewest(4096, 4096)) == "from 4096 samples on (measured)"


@pytest.mark.parametrize(
    ("name", "capability", "key"),
    [
        ("NVIDIA H200", (9, 0), "h200"),
        ("NVIDIA GH200 480GB", (9, 0), "gh200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), "h100_sxm"),
        ("NVIDIA L4", (8, 9), "l4"),
        ("NVIDIA L40S", (8, 9), "l40s"),
        ("NVIDIA B200", (10, 0), "b200"),
        ("an unknown one", (8, 9), "l40s"),
        ("an unknown one", (9, 0), "h100_sxm"),
        ("an unknown one", (10, 3), "b200"),
        ("an unknown one", (12, 1), "rtx5090"),
    ],
)
def test_a_gpu_is_found_by_its_name_or_else_by_its_capability(monkeypatch, name, capability, key):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert Gains.of(torch.device("cuda")).key == key


def net() -> nn.Sequential:
    with torch.device("meta"):
        layers = nn.Linear(4096, 4096), nn.Linear(512, 512), nn.Conv2d(16, 16, 3)
        return nn.Sequential(*layers, nn.Linear(4096, 10))


def test_layers_are_explained_as_the_technique_decides():
    gains = Gains.named("h200")
    found = recipe("fp8").explained(net(), "h200", 8192)
    assert [each.computes for each in found] == ["native", *["left out"] * 3]
    assert found[0].reason == "from 2048 samples on (predicted)"
    assert found[0].gain == gains.gain(8192, 4096, 4096).value
    assert found[1].gain < 1
    assert found[3].gain is None
    assert found[3].reason == "widths not multiples of 16"
    (few, *_) = recipe("fp8").explained(net(), "h200", 128)
    assert (few.how, few.computes) == ("native", "left out")
    technique = Float8Layers("dynamic", gains=gains)
    layer = net()[0]
    native = technique.native(layer)
    assert isinstance(native, NativeFloat8)
    assert native.fewest == 2048
    delayed = recipe({"base": "fp8", "float8": "delayed"})
    for each, on in ((recipe("fp8"), "cpu"), (delayed, "h200"), (recipe("mxfp8"), "b200")):
        ways = [layer.computes for layer in each.explained(net(), on, {"0": 8192})]
        assert ways[0] == ways[1] == "rehearsed"
        assert ways[3] == "left out"
    with pytest.raises(ValueError, match="recipe 'bf16' changes no layers"):
        recipe("bf16").explained(net(), "h200")
