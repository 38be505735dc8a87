"""What a device says to a recipe."""

from __future__ import annotations

import pytest
import torch

from halfstep.engine import Engine
from halfstep.kernels import hardware
from halfstep.recipe import recipe, recipes


@pytest.fixture
def machine(monkeypatch):
    """Pretend a GPU's compute capability."""

    def pretend(capability):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)

    return pretend


def how(name: str, device: str) -> str:
    return recipe(name).resolve(device).how


ALL_NATIVE = dict.fromkeys(recipes(), "native") | dict.fromkeys(
    ["fp8", "fp8-delayed", "mxfp8", "mxfp4", "nvfp4", "fp16-acc16"], "rehearsed"
)
WITHOUT = {"fp16", "fp16-acc16", "half", "half-bn32", "o1", "o2", "o3", "tf32"}
WITH_BF16 = {"bf16", "bf16-true", "bf16-sr", "bf16-kahan"}


@pytest.mark.parametrize(
    ("capability", "device", "rehearsed"),
    [
        (None, "cpu", WITHOUT | WITH_BF16),
        ((9, 0), "cuda", set()),
        ((7, 0), "cuda:1", WITH_BF16 | {"tf32"}),
        ((5, 2), "cuda", WITHOUT | WITH_BF16),
    ],
)
def test_recipes_are_native_where_the_hardware_has_their_units(
    machine, capability, device, rehearsed
) -> None:
    machine(capability)
    expected = ALL_NATIVE | dict.fromkeys(rehearsed, "rehearsed")
    assert {name: how(name, device) for name in recipes()} == expected


def test_each_part_says_why(machine) -> None:
    machine((7, 5))
    found = recipe("bf16+tf32").resolve("cuda")
    assert found.those("native") == []
    where = "compute capability 7.5 has no"
    assert found.those("rehearsed") == [
        f"autocast bf16: rehearsed ({where} bf16 units: PyTorch computes it through fp32)",
        f"matmul tf32: rehearsed ({where} tf32 units: inputs rounded to tf32, fp32 kernels)",
    ]
    assert str(recipe("fp32").resolve("cpu")) == "fp32 on cpu: asks nothing of the hardware"


@pytest.mark.parametrize("kind", ["mps", "xpu"])
def test_other_accelerators_refuse_what_needs_kernels_and_say_so(kind) -> None:
    found = {name: recipe(name).resolve(kind) for name in recipes()}
    refused = {name for name, each in found.items() if each.how == "refused"}
    assert refused == {"tf32", "fp16-acc16", "act2", "act3", "act4", "act8"}
    why = f"refused (no rehearsal on {kind}, for which halfstep has no kernels; use cpu or cuda)"
    assert all(why in str(found[name]) for name in refused)
    assert found["fp16"].those("native")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="'cuda', but no such GPU is here; write cpu"):
        recipe("bf16").resolve("cuda")


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ValueError, match="device is 'gpu'; allowed: cpu, cuda"):
        recipe("bf16").resolve("gpu")


def test_an_engine_refuses_what_the_device_refuses(monkeypatch) -> None:
    monkeypatch.setattr(hardware, "ON", {})
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="'tf32' on cpu: matmul tf32: refused"):
        Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe="tf32")


def test_an_engine_says_what_it_does() -> None:
    model = torch.nn.Linear(2, 2)
    with Engine(model, torch.optim.SGD(model.parameters(), 0.1), recipe="fp8") as engine:
        found = engine.resolution
    assert (found.recipe, found.device, found.how) == ("fp8", "cpu", "rehearsed")
    assert [(part.field, part.how) for part in found.parts] == [
        ("autocast bf16", "rehearsed"),
        ("float8 dynamic", "rehearsed"),
    ]
