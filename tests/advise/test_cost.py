"""Predicted times: what must hold of them whatever the constants are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfstep.advise.cost import constants, kernels, step_time
from halfstep.advise.gpus import gpu, gpus
from halfstep.advise.interval import around, half_width, is_vague, speed_up
from halfstep.advise.operators import Op
from halfstep.advise.trace import Call
from halfstep.advise.workload import Workload, workload
from halfstep.errors import UserError

SIZE = 4096
PRODUCT = Op(
    "mm", "gemm", "fp16", flops=2 * SIZE**3, read=4 * SIZE**2, written=2 * SIZE**2,
    elements=SIZE**2, m=SIZE, n=SIZE, k=SIZE,
)  # fmt: skip
SUM = Op("add", "pointwise", "fp32", read=8 * SIZE**2, written=4 * SIZE**2, elements=SIZE**2)
A100 = gpu("a100_40_sxm")


def of(*ops: Op, on: str = "a100_40_sxm", count: int = 1, **changed: float) -> Workload:
    calls = [Call(op, "forward", count) for op in ops]
    return workload(calls, replace(gpu(on), **changed), tf32=True)


def test_more_bandwidth_or_a_higher_peak_never_makes_a_step_slower() -> None:
    for name in ("bandwidth", "fp16", "memory"):
        given = getattr(A100, name)
        times = [
            step_time(of(PRODUCT, SUM, count=50, **{name: given * factor})).seconds
            for factor in (0.5, 1.0, 2.0)
        ]
        assert times == sorted(times, reverse=True), name
        assert (times[0] > times[2]) == (name != "memory")


def test_no_kernel_is_faster_than_its_datasheet_by_more_than_a_cache_explains() -> None:
    found = kernels(of(PRODUCT, SUM), constants())
    assert found.total[0] > PRODUCT.flops / 312e12
    assert found.total[1] > (SUM.read + SUM.written) / 1555e9 / 1.5


def test_what_bounds_a_step_is_what_most_of_it_waits_for() -> None:
    tiny = Op("add", "pointwise", read=8, written=4, elements=1)
    assert step_time(of(PRODUCT, count=50)).bound == "compute"
    assert step_time(of(SUM, count=50)).bound == "bandwidth"
    assert step_time(of(tiny, count=50)).bound == "host"


def test_half_products_cost_as_much_as_fp32_where_there_are_no_units_for_them() -> None:
    of_format = [
        step_time(of(replace(PRODUCT, format=each), on="t4")).seconds for each in ("bf16", "fp32")
    ]
    assert of_format[0] == pytest.approx(of_format[1], rel=0.01)
    assert step_time(of(PRODUCT, on="t4")).seconds < of_format[0] / 3


def test_intervals_are_ordered_and_wider_where_less_is_known() -> None:
    depthwise = Op(
        "convolution", "depthwise", "fp16", flops=SIZE**2 * 18, read=2 * SIZE**2,
        written=2 * SIZE**2, elements=SIZE**2, window=9,
    )  # fmt: skip
    plain, vague = of(PRODUCT, count=50), of(depthwise, count=500)
    assert not is_vague(plain)
    assert is_vague(vague)
    widths = [half_width(work, A100, share) for work in (plain, vague) for share in (80, 90)]
    assert widths[0] < widths[1] < widths[3]
    assert widths[0] < widths[2] < widths[3]
    assert half_width(plain, gpu("b200")) > widths[0]
    low, value, high = around(2.0, 0.1)
    assert low < value < high
    ratio = speed_up(of(replace(PRODUCT, format="fp32"), count=50), plain, A100)
    assert 1 < ratio.low < ratio.value < ratio.high


def test_a_gpu_is_found_by_any_of_its_names_and_an_unknown_one_names_those_that_are() -> None:
    assert gpu("RTX 4090") == gpu("rtx-4090") == gpus()["rtx4090"]
    assert gpu("V100").key == "v100_16"
    with pytest.raises(UserError, match=r"no GPU is named 'h101'; allowed: .*t4.*h200.*'h100'"):
        gpu("h101")


def test_peaks_agree_with_the_multiprocessors_and_the_clock() -> None:
    # Operations of a multiprocessor in a clock cycle outside tensor cores: two for each fp32 lane.
    lanes = {"volta": 64, "turing": 64, "ampere": 128, "ada": 128, "hopper": 128, "blackwell": 128}
    for each in gpus().values():
        if each.architecture in lanes and not each.key.startswith("a100"):
            rate = 2 * lanes[each.architecture] * each.sms * each.clock * 1e6 / 1e12
            assert each.fp32 == pytest.approx(rate, rel=0.12), each.key
