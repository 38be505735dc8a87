"""The rehearsed FP8 products beside an H100's, as the package `mmaemu` computes them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("mmaemu")

from halfstep.mechanisms.products.quantised import Quantised

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fp8_distance.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("bench_fp8_distance", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("product", ["forward", "gradient"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_no_sum_is_rounded_the_bits_are_a_tensor_cores(benchmark, product, dtype):
    """Small whole numbers: every partial sum is exact in either accumulation."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.float8_e4m3fn if product == "forward" else torch.float8_e5m2
    # The largest of each factor is the format's own, so that scales are 1 and values stay.
    top = torch.finfo(kind).max
    value = torch.randint(-3, 4, (16, 64), generator=generator).float()
    weight = torch.randint(-3, 4, (16, 64), generator=generator).float()
    value[0, 0], weight[:, 0], weight[0, 1], value[:, 1] = top, 0, 448.0, 0
    one = torch.ones(())
    left, right = (
        Quantised(each.to(where), one)
        for each, where in ((value, kind), (weight, torch.float8_e4m3fn))
    )
    expected = benchmark.by_tensor_core(left, right, dtype, fast=product == "forward")
    assert torch.equal(benchmark.rehearsed(value, weight, product, dtype), expected)
    assert expected.abs().max() > 16


@pytest.mark.parametrize("product", ["forward", "gradient"])
def test_a_rehearsal_is_far_nearer_to_a_tensor_core_than_fp8_is_to_fp32(benchmark, product):
    for name, value in benchmark.factors(256).items():
        found = benchmark.distance(name, value, product)
        assert 0 < found.before_rounding < found.of_fp8 / 50
        assert found.before_rounding < found.in_bf16 < found.of_fp8 / 20


def test_fast_accumulation_is_what_makes_most_of_the_distance(benchmark):
    value = benchmark.factors(1024)["normal"]
    weight = benchmark.weight_of(1024)
    left = benchmark.FP8.quantised(value, "input", (1,))
    right = benchmark.FP8.quantised(weight, "weight", (1,))
    ours = benchmark.rehearsed(value, weight, "forward", torch.float32)
    fast, exact = (
        benchmark.relative(benchmark.by_tensor_core(left, right, torch.float32, fast=fast), ours)
        for fast in (True, False)
    )
    assert exact < fast / 2
