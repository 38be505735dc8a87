"""Steps in FP8 are traced as a GPU with FP8 units runs them."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from halfstep.advise.predict.cost import constants, kernels
from halfstep.advise.predict.forecast import Forecaster, forecast, forecasts
from halfstep.advise.predict.gpus import gpu, read
from halfstep.advise.predict.step import traced_at
from halfstep.advise.predict.workload import workload
from halfstep.advise.subject import Subject
from halfstep.cli import main
from halfstep.errors import UserError
from halfstep.mechanisms.float8.counted import CountedFloat8, gains_of
from halfstep.mechanisms.float8.gain import Gains
from halfstep.mechanisms.float8.native import NativeFloat8
from halfstep.recipe import recipe

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.advise.predict.trace import Trace

H200, A100 = gpu("h200"), gpu("a100")
TOKENS, WIDE, NARROW = 8192, 4096, 2048


def subject(*widths: int) -> Subject:
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))
    batch = torch.zeros(1).expand(TOKENS, widths[0])
    return Subject(
        "layers",
        model,
        lambda model, batch: model(batch[0]).float().square().mean(),
        [(batch,)],
        lambda model: torch.optim.SGD(model.parameters(), 0.01),
    )


def trace(given: Subject, name: str = "fp8") -> Trace:
    return traced_at(given, recipe(name), [TOKENS], gpu=H200)[0]


def products(found: Trace) -> Counter[tuple[int, ...]]:
    return Counter(
        {
            (call.op.m, call.op.n, call.op.k): call.count
            for call in found.calls
            if call.op.name == "_scaled_mm"
        }
    )


def test_a_layer_multiplies_natively_forward_and_for_both_gradients() -> None:
    one = trace(subject(WIDE, NARROW))
    # The first layer's input needs no gradient.
    assert products(one) == {(TOKENS, NARROW, WIDE): 1, (NARROW, WIDE, TOKENS): 1}
    wider = 3 * WIDE
    assert products(trace(subject(WIDE, NARROW, wider))) == {
        (TOKENS, NARROW, WIDE): 1, (NARROW, WIDE, TOKENS): 1,
        (TOKENS, wider, NARROW): 1, (TOKENS, NARROW, wider): 1, (wider, NARROW, TOKENS): 1,
    }  # fmt: skip
    assert not any(call.op.name in {"mm", "addmm"} for call in one.calls)
    bf16 = trace(subject(WIDE, NARROW), "bf16")
    assert one.flops == bf16.flops

    def seconds(found: Trace, *names: str) -> float:
        calls = [call for call in found.calls if call.op.name in names]
        return float(kernels(workload(calls, H200, tf32=False), constants("hopper")).total.sum())

    gain = Gains.named("h200").gain(TOKENS, WIDE, NARROW).value
    taken = seconds(bf16, "mm", "addmm") / seconds(one, "_scaled_mm")
    assert taken == pytest.approx(gain, rel=0.01)


@pytest.mark.parametrize("scaling", ["dynamic", "rowwise"])
@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_counted_casts_return_what_casts_do(scaling: str, sides: tuple[bool, bool]) -> None:
    rows, columns = sides
    matrix = torch.randn(24, 16)
    native = NativeFloat8(scaling)  # type: ignore[arg-type]
    real = native.cast(matrix, "gradient", rows=rows, columns=columns)
    counted = CountedFloat8(native, (16, 24), gains_of(H200), lambda each: None)
    made = counted.cast(matrix, "gradient", rows=rows, columns=columns)
    for mine, theirs in zip(made, real, strict=True):
        assert (mine is None) == (theirs is None)
        for part, other in zip(mine or (), theirs or (), strict=True):
            assert (part.shape, part.dtype) == (other.shape, other.dtype)
    again = counted.cast(matrix, "gradient", rows=rows, columns=columns, out=made)
    assert all(one is other for one, other in zip(again, made, strict=True))


def test_wide_layers_are_faster_than_in_bf16_and_narrow_ones_are_left_in_it() -> None:
    _, bf16, fp8 = forecast(subject(WIDE, WIDE, WIDE), ["bf16", "fp8"], [H200])
    assert fp8.seconds.value < 0.95 * bf16.seconds.value
    assert not fp8.lacks
    assert fp8.speed_up is not None
    assert fp8.memory < bf16.memory  # an input is saved in one byte
    # No step in FP8 was measured.
    assert math.log(fp8.seconds.high / fp8.seconds.value) >= 0.26
    _, bf16, fp8 = forecast(subject(64, 64, 64), ["bf16", "fp8"], [H200])
    assert fp8.seconds.value == pytest.approx(bf16.seconds.value)


def test_a_gpu_decides_which_layers_are_in_fp8(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[mine]\narchitecture = "hopper"\nprocess = 4\nfp16 = 900\nfp8 = 1800\n'
        "tf32 = 450\nfp32 = 60\nbandwidth = 10\n"
        "memory = 80\ncache = 50\nsms = 132\nclock = 1800\npower = 700\n"
    )
    (slow,) = read(file).values()
    assert recipe("fp8").untraceable_on(slow) == ""
    one = Forecaster(subject(WIDE, NARROW), largest=False)

    def in_fp8(on: str) -> bool:
        at = slow if on == "mine" else gpu(on)
        found = one.trace(recipe("fp8"), at)
        return any(call.op.name == "_scaled_mm" for call in found.calls)

    assert in_fp8("h200")
    assert not in_fp8("mine")  # its memory is so slow that casts cost more than they save


def test_fp8_is_refused_with_the_reason_where_it_is_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = subject(64, 64)
    with pytest.raises(UserError, match=r"cost of fp8 on A100.*has no FP8 units.*--recipes"):
        forecast(given, ["fp8"], [A100])
    assert "AMD" in recipe("fp8").untraceable_on(gpu("mi300x"))
    for name in ("fp8-delayed", "mxfp8", "fp8+act4"):
        assert "run different operators" in recipe(name).untraceable_on(H200)
    found = forecasts(Forecaster(given, largest=False), ["fp8"], [A100, H200])
    assert [(each.gpu.key, each.recipe) for each in found] == [
        ("a100_80_sxm", "tf32"), ("h200", "tf32"), ("h200", "fp8"),
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    asked = ["advise", "digits", "--recipes", "fp8", "--cost-only", "--gpu"]
    assert main([*asked, "a100,t4"]) == 2
    assert "has no FP8 units" in capsys.readouterr().err
    assert main([*asked, "a100,t4,h200"]) == 0
    shown = capsys.readouterr().out
    reason = "the GPU has no FP8 units, and no trace on a CPU tells what emulation costs there"
    assert f"not predicted: fp8 on {A100.name}, fp8 on {gpu('t4').name}: {reason}" in shown
    assert main([*asked, "h200", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["predicted"]["rows"]
    assert rows[1]["recipe"] == "fp8"
    assert rows[1]["predicted_seconds"]["value"] > 0


def test_exceptions_stay_out_of_fp8() -> None:
    given = replace(subject(WIDE, NARROW), name="kept")
    found = recipe({"base": "fp8", "exceptions": {"0": "fp32"}})
    kept = traced_at(given, found, [TOKENS], gpu=H200)[0]
    assert not any(call.op.name == "_scaled_mm" for call in kept.calls)
