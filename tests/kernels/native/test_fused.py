"""Passes in C against the plain PyTorch that they stand for, bit for bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.kernels.native import fused
from halfstep.kernels.rounding import round_compensated, round_stochastically


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if fused.library() is None:
        pytest.skip("no C compiler")


def awkward(elements: int, scale: float) -> torch.Tensor:
    """Values of any size, among them zeros, ties, the largest, and some that are not finite."""
    values = torch.randn(elements, generator=torch.Generator().manual_seed(elements)) * scale
    values[::33] = -0.0
    values[1::17] = 1.00390625  # half-way between two of bf16
    values[2::91] = torch.finfo(torch.float32).max
    values[3::50] = -torch.inf
    values[4::77] = torch.nan
    return values


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a bf16 tensor; of NaN, those of one NaN."""
    return tensor.masked_fill(tensor.isnan(), torch.nan).view(torch.int16)


def plainly(monkeypatch_context, function, *args):
    """Call a function on a machine without a compiler."""
    with monkeypatch_context() as patch:
        patch.setattr(fused, "library", lambda: None)
        return function(*args)


scales = st.sampled_from([1e-42, 1e-6, 1.0, 1e30])
elements = st.integers(0, 2000)


@settings(max_examples=60, deadline=None)
@given(elements, scales, st.integers(0, 700))
def test_stochastic_rounding_draws_the_numbers_of_torch(elements, scale, drawn_before):
    values = awkward(elements, scale)
    ours, theirs = (torch.Generator().manual_seed(7) for _ in range(2))
    for generator in (ours, theirs):
        torch.randint(5, (drawn_before,), generator=generator)
    for _ in range(2):
        rounded = round_stochastically(values, ours)
        expected = plainly(pytest.MonkeyPatch.context, round_stochastically, values, theirs)
        assert torch.equal(bits(rounded), bits(expected))
    assert torch.equal(ours.get_state(), theirs.get_state())


@settings(max_examples=40, deadline=None)
@given(elements, scales)
def test_a_compensation_is_what_rounding_loses(elements, scale):
    values = awkward(elements, scale)
    for ours, theirs in zip(
        round_compensated(values),
        plainly(pytest.MonkeyPatch.context, round_compensated, values),
        strict=True,
    ):
        assert torch.equal(bits(ours), bits(theirs))


def test_they_are_used_where_memory_has_no_gaps_and_not_elsewhere():
    values, rounded = torch.randn(8, 8), torch.empty(8, 8, dtype=torch.bfloat16)
    generator = torch.Generator()
    assert fused.round_stochastically(values, rounded, generator)
    assert not fused.round_stochastically(values.t(), rounded, generator)
    assert not fused.round_stochastically(values.double(), rounded, generator)
    assert not fused.round_compensated(values, rounded, rounded.float())


def test_a_generator_that_draws_otherwise_is_left_to_torch(monkeypatch):
    monkeypatch.setattr(fused, "_draws_as_torch", lambda: False)
    generator = torch.Generator()
    before = generator.get_state()
    rounded = torch.empty(3, dtype=torch.bfloat16)
    assert not fused.round_stochastically(torch.ones(3), rounded, generator)
    assert torch.equal(generator.get_state(), before)
