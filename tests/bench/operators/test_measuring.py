"""Measured operators: measured, read and predicted from, with the CPU as the device."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from halfstep.advise.predict import measured
from halfstep.advise.predict.cost import constants, kernels
from halfstep.advise.predict.gpus import gpu
from halfstep.advise.predict.operators import Op
from halfstep.advise.predict.trace import Call
from halfstep.advise.predict.workload import workload
from halfstep.bench.operators import measuring, spec
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


def test_times_are_interpolated_in_what_is_measured_and_nothing_else() -> None:
    known = times(3.0, 3.0, 0.5, 0.5)
    exact = known.corrections(known.calls, tf32=False)
    assert exact == pytest.approx([3.0, 3.0, 0.5, 0.5])  # a switch of kernels is no outlier
    between = Call(product(96), "forward", 1)
    (found,) = known.corrections([between], tf32=False)
    assert 1.0 < found < 3.0
    far = Call(product(2**20), "forward", 1)
    assert known.corrections([far], tf32=False)[0] == pytest.approx(1.0, abs=0.05)
    half = Call(replace(product(64), format="fp16"), "forward", 1)
    assert known.corrections([half], tf32=False)[0] == 1.0
    assert known.corrections(known.calls, tf32=True) == pytest.approx([1.0] * 4)


def test_the_nearest_measured_device_is_taken_and_the_own_one_of_equals() -> None:
    def at(name: str, *, own: bool = False) -> measured.Measured:
        return replace(times(1.0), gpu=gpu(name), own=own)

    h100, h200, own = at("h100"), at("h200"), at("h200", own=True)
    assert measured.nearest([h100, h200], gpu("h200")) is h200
    assert measured.nearest([own, h100, h200], gpu("h200")) is own
    assert measured.nearest([at("t4"), h100], gpu("gh200")) is h100
    assert measured.nearest([at("t4"), h100], gpu("b200")) is h100
    assert measured.nearest([h100, h200], gpu("mi300x")) is None


def test_the_interval_grows_with_the_distance() -> None:
    near = replace(times(1.0, 1.2, 0.9, 1.1), gpu=gpu("h200"))

    def width(name: str) -> float:
        work = workload(near.calls, gpu(name), tf32=False)
        made = measured.corrected(work, near.calls, gpu(name), near, tf32=False)
        assert made.widths is not None
        assert made.widths[0] < made.widths[1] or name == "h200"
        assert (made.launch > 0) == (name == "h200")  # the host is known on the own GPU alone
        return made.widths[0]

    assert width("h200") < width("h100") < width("b200")
    assert width("b200") > math.log(1.29)


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


def test_the_whole_way_from_measuring_to_a_prediction_on_the_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text(SHEET)
    asked = ["advise", "timm:test_vit", "--gpu", "mine.toml", "--recipes", "fp16", "--json"]
    asked += ["--shape", "3x32x32", "--batch-size", "2", "--options", "model.args.img_size=32"]

    def predicted() -> dict[str, Any]:
        assert main(asked) == 0
        rows = json.loads(capsys.readouterr().out)["predicted"]["rows"]
        return {row["recipe"]: row["predicted_seconds"] for row in rows}

    before = predicted()
    monkeypatch.setattr(measuring, "commonest", lambda: [PRODUCT, CAST])
    measure = ["bench", "operators", "--gpu", "mine.toml", "--device", "cpu"]
    assert main(measure) == 0
    path = measured.own_folder() / "mine.json"
    assert f"3 of 3 calls are in {path}" in capsys.readouterr().out
    assert json.loads(path.read_text())["datasheet"]["key"] == "mine"
    after = predicted()
    asked.remove("--json")
    assert main(asked) == 0
    device = f"CPU with PyTorch {torch.__version__}"
    assert f"mine: from operators that were measured on {device}\n" in capsys.readouterr().out
    assert after["fp32"]["value"] != before["fp32"]["value"]
    assert after["fp32"]["high"] / after["fp32"]["value"] != pytest.approx(
        before["fp32"]["high"] / before["fp32"]["value"]
    )


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
