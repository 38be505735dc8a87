"""The comparison of rehearsed with other fp16 arithmetic."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "rehearsal.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("bench_rehearsal", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_single_precision_is_its_own_reference(benchmark):
    exact = benchmark.curve("fp32", 3, [], [])
    assert exact.loss_deviation == 0
    assert exact.cosine_lowest == pytest.approx(1, abs=1e-6)
    assert exact.first_overflow is None


def test_rehearsed_gradients_point_where_those_of_single_do(benchmark):
    exact = benchmark.curve("fp32", 3, [], [])
    rehearsed = benchmark.curve("rehearsed", 3, exact.losses, [])
    assert 0 < rehearsed.loss_deviation < 0.01
    assert 0.99 < rehearsed.cosine_lowest < 1
    assert rehearsed.overflow_scale == 2.0**rehearsed.first_overflow
