"""Measured operators: measured, read and predicted from, with the CPU as the device."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from halfstep.advise.predict import measured
from halfstep.advise.predict.cost import constants, kernels, step_time
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.interval import half_width
from halfstep.advise.predict.operators import Op
from halfstep.advise.predict.trace import Call
from halfstep.advise.predict.workload import workload
from halfstep.bench.operators import here, measuring, spec
from halfstep.cli import main
from halfstep.errors import UserError

CPU = replace(gpu("t4"), key="mine", name="mine", architecture="cpu", fp16=0.1, fp32=0.1, sms=2)
SHEET = """[mine]
architecture = "cpu"
process = 7
fp16 = 0.1
fp32 = 0.1
bandwidth = 10
memory = 16
cache = 16
sms = 2
clock = 3000
power = 100
"""
DEVICE = torch.device("cpu")


def image(*shape: int, dtype: str = "half") -> dict[str, Any]:
    return {"tensor": list(shape), "dtype": dtype, "order": [*range(len(shape))]}


CONVOLUTION = {
    "op": "convolution.default",
    "args": [image(2, 8, 8, 8), image(8, 8, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1],
    "named": {},
}
PRODUCT = {
    "op": "mm.default",
    "args": [image(32, 16, dtype="full"), {"tensor": [16, 8], "dtype": "full", "order": [1, 0]}],
    "named": {},
}
CAST = {
    "op": "_to_copy.default",
    "args": [image(32, 16, dtype="full")],
    "named": {"dtype": {"torch": "float16"}},
}
LISTED = [CONVOLUTION, PRODUCT, CAST]


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def test_a_call_is_made_again_in_each_format_and_layout() -> None:
    names = [(format_, last) for _, _, format_, last in measuring.variants(LISTED)]
    halves = [(format_, last) for format_ in ("fp16", "bf16") for last in (False, True)]
    assert names == [*halves, ("fp32", False), ("tf32", False), ("fp32", False)]
    args, named = spec.arguments(CONVOLUTION, "bf16", channels_last=True, device=DEVICE)
    assert args[0].dtype == torch.bfloat16
    assert args[0].is_contiguous(memory_format=torch.channels_last)
    assert spec.call(CONVOLUTION, args, named)().shape == (2, 8, 8, 8)
    (left, right), _ = spec.arguments(PRODUCT, "fp32", channels_last=False, device=DEVICE)
    assert right.stride() == (1, 16)
    assert spec.encoded("mm.default", (left, right), {}) == PRODUCT
    args, named = spec.arguments(CAST, "bf16", channels_last=False, device=DEVICE)
    assert spec.call(CAST, args, named)().dtype == torch.bfloat16


def test_batch_norms_and_attention_are_those_of_the_device() -> None:
    size = (2, 2, 8, 4)
    heads = [image(*size) for _ in range(4)]
    attention = {
        "op": "_scaled_dot_product_flash_attention_for_cpu.default", "args": heads[:3], "named": {}
    }  # fmt: skip
    assert not spec.has_images(attention)
    args, named = spec.arguments(attention, "fp16", channels_last=False, device=DEVICE)
    given = functional.scaled_dot_product_attention(*args)
    torch.testing.assert_close(spec.call(attention, args, named)(), given)
    backward = attention | {
        "op": "_scaled_dot_product_flash_attention_for_cpu_backward.default", "args": heads
    }  # fmt: skip
    args, named = spec.arguments(backward, "fp16", channels_last=False, device=DEVICE)
    assert [each.shape for each in spec.call(backward, args, named)()] == [size] * 3


def test_a_file_is_measured_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    assert measuring.measure(path, CPU, DEVICE, limit=0.0, listed=LISTED) == (1, 7)
    first = json.loads(path.read_text())["rows"][0]
    assert measuring.measure(path, CPU, DEVICE, limit=60.0, listed=LISTED) == (7, 7)
    rows = json.loads(path.read_text())["rows"]
    assert rows[0] == first
    assert len({row["name"] for row in rows}) == 7
    assert all(row["seconds"] > 0 for row in rows)
    other = json.loads(path.read_text()) | {"torch": "1.0"}
    path.write_text(json.dumps(other))
    with pytest.raises(UserError, match=r"measured with torch 1.0, .* another file with --out"):
        measuring.measure(path, CPU, DEVICE, limit=1.0, listed=LISTED)


def test_a_call_that_fails_is_refused_with_its_reason(tmp_path: Path) -> None:
    wrong = PRODUCT | {"args": [image(3, 4), image(5, 6)]}
    measuring.measure(tmp_path / "mine.json", CPU, DEVICE, limit=60.0, listed=[wrong])
    (row, _) = json.loads((tmp_path / "mine.json").read_text())["rows"]
    assert "cannot be multiplied" in row["refused"]
    assert "seconds" not in row


def product(size: int) -> Op:
    return Op(
        "mm", "gemm", "fp32", flops=2 * size**3, read=8 * size**2, written=4 * size**2,
        elements=size**2, m=size, n=size, k=size,
    )  # fmt: skip


def times(*factors: float, on: str = "t4", launch: float = 1e-5) -> measured.Measured:
    """Return products of growing size, measured as these multiples of the model's times."""
    calls = tuple(Call(product(64 * 2**at), "forward", 1) for at in range(len(factors)))
    modelled = kernels(workload(calls, gpu(on), tf32=False), constants()).total
    seconds = tuple(map(float, modelled * factors))
    flags = (False,) * len(calls)
    return measured.Measured(Path("a"), "T4", gpu(on), launch, calls, flags, seconds, own=True)


def ratio(known: measured.Measured, op: Op, *, tf32: bool = False) -> float:
    found = known.similar([Call(op, "forward", 1)], tf32=tf32)
    return math.exp(found.ratio[0])


def test_times_are_interpolated_in_what_is_measured_and_nothing_else() -> None:
    known = times(3.0, 3.0, 0.5, 0.5)
    exact = known.similar(known.calls, tf32=False)
    assert np.exp(exact.ratio) == pytest.approx([3.0, 3.0, 0.5, 0.5])  # a switch is no outlier
    assert exact.trust == pytest.approx([1.0] * 4)
    assert 1.0 < ratio(known, product(96)) < 3.0
    assert ratio(known, product(2**20)) == pytest.approx(1.0, abs=0.05)
    assert ratio(known, replace(product(64), format="fp16")) == 1.0
    assert ratio(known, product(64), tf32=True) == 1.0
    trusts = [
        known.similar([Call(product(size), "forward", 1)], tf32=False).trust[0]
        for size in (64, 72, 96, 2**20)
    ]
    assert trusts == sorted(trusts, reverse=True)
    assert trusts[-1] < 0.01


def test_held_out_calls_say_nothing_of_those_with_their_sizes() -> None:
    once = times(3.0, 1.0)
    twice = replace(
        once,
        calls=once.calls[:1] * 2,
        tf32=(False, False),
        seconds=(once.seconds[0], 1.1 * once.seconds[0]),
    )
    assert twice.similar(twice.calls, tf32=False, held_out=True).trust == pytest.approx([0, 0])
    assert twice.widths is None
    assert once.widths is not None


def pointwise(name: str, size: int) -> Op:
    return Op(name, "pointwise", read=size, written=size, elements=size // 4)


def test_operators_limited_by_bytes_stand_for_each_other_but_less_than_for_themselves() -> None:
    calls = tuple(Call(pointwise("add", 2**at), "forward", 1) for at in (20, 24))
    modelled = kernels(workload(calls, gpu("t4"), tf32=False), constants()).total
    seconds = tuple(map(float, 2 * modelled))
    base = times(1.0)
    known = replace(base, calls=calls, tf32=(False, False), seconds=seconds)
    assert ratio(known, pointwise("add", 2**20)) == pytest.approx(2.0)
    assert ratio(known, pointwise("mul", 2**20)) == pytest.approx(2**0.5)
    norm = replace(pointwise("native_layer_norm", 2**20), kind="row norm")
    assert ratio(known, norm) == 1.0


def test_the_nearest_measured_device_is_taken_and_the_own_one_of_equals() -> None:
    def at(name: str, *, own: bool = False) -> measured.Measured:
        return replace(times(1.0), gpu=gpu(name), own=own)

    h100, h200, own = at("h100"), at("h200"), at("h200", own=True)
    assert measured.nearest([h100, h200], gpu("h200")) is h200
    assert measured.nearest([own, h100, h200], gpu("h200")) is own
    assert measured.nearest([at("t4"), h100], gpu("gh200")) is h100
    assert measured.nearest([at("t4"), h100], gpu("b200")) is h100
    assert measured.nearest([h100, h200], gpu("h200_nvl")) is h200  # by the datasheet
    assert measured.nearest([h100, at("h100_pcie", own=True)], gpu("h200_nvl")).own
    assert measured.nearest([h100, h200], gpu("mi300x")) is None


def test_the_interval_grows_with_the_distance() -> None:
    near = replace(times(1.0, 1.2, 0.9, 1.1), gpu=gpu("h200"))

    def width(name: str, size: int = 64, count: int = 1) -> float:
        calls = [Call(product(size), "forward", count)]
        work = workload(calls, gpu(name), tf32=False)
        made = measured.corrected(work, calls, gpu(name), near, tf32=False)
        assert (made.launch > 0) == (name == "h200")  # the host is known on the own GPU alone
        made = replace(made, launch=1e-12)  # so that the GPU is the limit
        assert half_width(made, gpu(name)) < half_width(made, gpu(name), 90)
        return half_width(made, gpu(name))

    def modelled(name: str, size: int) -> float:
        calls = [Call(product(size), "forward", 1)]
        work = replace(workload(calls, gpu(name), tf32=False), launch=1e-12)
        return half_width(work, gpu(name))

    assert width("h200") < width("h100") < width("b200")
    assert width("b200") > math.log(1.29)
    # Of a call that is like none that was measured, the cost model says as much as before.
    assert width("h200", 2**16) == pytest.approx(modelled("h200", 2**16), rel=0.01)
    part = near.similar([Call(product(96), "forward", 1)], tf32=False).trust[0]
    assert near.widths is not None
    between = part * near.widths[0] + (1 - part) * modelled("h200", 96)
    assert width("h200", 96) == pytest.approx(between)


def test_the_interval_of_a_step_that_the_host_limits_is_that_of_the_host() -> None:
    near = replace(times(1.0, 1.2, 0.9, 1.1), gpu=gpu("h200"), launch=1.0)
    calls = [Call(product(64), "forward", 50)]
    work = workload(calls, gpu("h200"), tf32=False)
    made = measured.corrected(work, calls, gpu("h200"), near, tf32=False)
    assert step_time(made).bound == "host"
    assert half_width(made, gpu("h200")) == half_width(replace(work, launch=1.0), gpu("h200"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("", "has no measured operators"),
        ("[]", "lacks an object; measure them again with halfstep bench operators"),
        ('{"device": "x"}', "lacks datasheet, torch, cudnn, launch_seconds, rows"),
    ],
)
def test_a_wrong_file_is_named(change: str, said: str) -> None:
    path = measured.own_folder() / "h200.json"
    path.parent.mkdir(parents=True)
    path.write_text(change)
    with pytest.raises(UserError, match=said) as refused:
        measured.every()
    assert str(path) in str(refused.value)


def test_the_command_finds_the_users_file_and_names_the_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text(SHEET)
    monkeypatch.setattr(measuring, "commonest", lambda: [PRODUCT, CAST])
    assert main(["bench", "operators", "--gpu", "mine.toml", "--device", "cpu"]) == 0
    path = measured.own_folder() / "mine.json"
    assert f"3 of 3 calls are in {path}" in capsys.readouterr().out
    assert json.loads(path.read_text())["datasheet"]["key"] == "mine"
    asked = ["advise", "timm:test_vit", "--gpu", "mine.toml,mi300x", "--recipes", "fp16"]
    asked += ["--shape", "3x32x32", "--batch-size", "2", "--options", "model.args.img_size=32"]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    device = f"CPU with PyTorch {torch.__version__}"
    assert f"mine: from operators that were measured on {device}\n" in shown
    # What is not known of a GPU is not said of one whose operators were measured.
    assert f"MI300X: {gpu('mi300x').caution}" in shown
    assert "mine, MI300X:" not in shown


def test_the_cpu_needs_a_datasheet(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "operators", "--device", "cpu"]) == 2
    assert "add --gpu mine.toml, a file that does" in capsys.readouterr().err


def test_the_list_has_every_kind_of_operator() -> None:
    listed = measuring.commonest()
    assert len(listed) == 300
    names = {each["op"].split(".")[0] for each in listed}
    assert {"convolution", "convolution_backward", "mm", "addmm", "native_batch_norm"} <= names
    assert any("scaled_dot_product" in name for name in names)
    assert any("pool" in name for name in names)
    names = {each["op"] for each in listed}
    assert {"_fused_sgd_.default", "_fused_adamw_.default"} <= names
    assert "_amp_foreach_non_finite_check_and_unscale_.default" in names


def test_steps_of_optimizers_are_measured(tmp_path: Path) -> None:
    steps = [each for each in measuring.commonest() if each["op"].startswith(("_fused", "_amp"))]
    path = tmp_path / "mine.json"
    done, number = measuring.measure(path, CPU, DEVICE, limit=60.0, listed=steps[6:], shrink=16)
    assert done == number == 3
    sgd, adamw, unscale = (row["ops"][0] for row in json.loads(path.read_text())["rows"])
    assert (sgd["name"], adamw["name"]) == ("_fused_sgd_", "_fused_adamw_")
    assert unscale["name"] == "_amp_foreach_non_finite_check_and_unscale_"
    assert sgd["elements"] >= 16 * 2**14 / 16


CUDA_NAMES = {
    "NVIDIA H100 80GB HBM3": "h100_sxm", "NVIDIA H100 PCIe": "h100_pcie", "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200_nvl", "NVIDIA H20": "h20", "NVIDIA GH200 480GB": "gh200",
    "NVIDIA B200": "b200", "NVIDIA GB10": "gb10", "NVIDIA A100-SXM4-80GB": "a100_80_sxm",
    "NVIDIA A100-PCIE-40GB": "a100_40_pcie", "NVIDIA A100 80GB PCIe": "a100_80_pcie",
    "Tesla V100-SXM2-32GB": "v100_32", "Tesla T4": "t4", "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 5070 Ti": "rtx5070ti", "NVIDIA RTX 6000 Ada Generation": "rtx6000ada",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtxpro6000",
    "AMD Instinct MI300X": "mi300x", "AMD Radeon RX 7900 XTX": "rx7900xtx",
}  # fmt: skip


def test_a_gpu_is_found_by_the_name_that_torch_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in CUDA_NAMES.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        assert here.gpu_of(torch.device("cuda")).key == key
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA Z1")
    with pytest.raises(UserError, match=r"calls itself 'NVIDIA Z1'.*add --gpu"):
        here.gpu_of(torch.device("cuda"))


def test_a_time_is_carried_over_in_proportion_to_the_datasheets() -> None:
    near = replace(times(3.0, 3.0), gpu=gpu("h200"))
    for name in ("h200", "h100", "b200"):
        model = constants(gpu(name).architecture)
        plain = workload(near.calls, gpu(name), tf32=False)
        made = measured.corrected(plain, near.calls, gpu(name), near, tf32=False)
        taken = kernels(made, model).total / kernels(plain, model).total
        # The ratio is that on the measured device, by the constants of its own architecture.
        assert taken == pytest.approx(np.exp(near.ratios))
