"""Passes over gradients in C against the PyTorch that they stand for, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.kernels import gradients
from halfstep.kernels.native import half

HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if half.library() is None:
        pytest.skip("no C compiler")


def spread_over_all_bits(start: int, elements: int) -> torch.Tensor:
    """fp32 values with every sign, exponent and NaN, and mantissas near those of half numbers."""
    drawn = np.random.default_rng(start).integers(0, 1 << 32, elements, dtype=np.uint32)
    ties = drawn & np.uint32(0xFFFFF000) | np.uint32(start % 3)
    return torch.from_numpy(np.where(drawn % 2, drawn, ties).view(np.float32).copy())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor; of NaN, those of one NaN."""
    whole = torch.int32 if tensor.dtype == torch.float32 else torch.int16
    return tensor.masked_fill(tensor.isnan(), torch.nan).view(whole)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(0, 3000), st.sampled_from(HALVES), st.integers(0, 9))
def test_rounding_and_widening_give_what_casts_give(start, elements, dtype, first):
    values = spread_over_all_bits(start, elements)[first:]
    expected = values.to(dtype)
    narrow = torch.empty(elements, dtype=dtype)[first:]  # begins anywhere within a vector
    wide, again, in_place = torch.empty_like(values), torch.empty_like(values), values.clone()
    if not half.round_to_half(values, dtype, narrow=narrow, wide=wide):
        pytest.skip("the processor rounds one number at a time")
    assert half.round_to_half(in_place, dtype, wide=in_place)
    assert half.widen(narrow, again)
    assert torch.equal(bits(narrow), bits(expected))
    for each in (wide, again, in_place):
        assert torch.equal(bits(each), bits(expected.float()))


def test_threads_share_a_tensor_without_gaps_or_overlaps(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    values = torch.randn(400_003)
    narrow, wide = torch.empty_like(values, dtype=torch.float16), torch.empty_like(values)
    if not half.round_to_half(values, torch.float16, narrow=narrow, wide=wide):
        pytest.skip("the processor rounds one number at a time")
    assert torch.equal(narrow, values.half())
    assert torch.equal(wide, values.half().float())
    assert half.round_to_half(values, torch.float16, wide=values)
    assert torch.equal(values, wide)


def test_gaps_and_other_formats_are_left_alone():
    wide = torch.zeros(8, 4)
    assert not half.round_to_half(torch.randn(8, 8)[:, ::2], torch.float16, wide=wide)
    assert not half.round_to_half(torch.randn(8, 4).double(), torch.float16, wide=wide)
    assert not half.widen(torch.randn(8, 8).half()[:, ::2], wide)
    assert not wide.any()


def unscaled(grads: list[torch.Tensor], factor: float) -> tuple[list[torch.Tensor], float]:
    grads = [grad.clone(memory_format=torch.preserve_format) for grad in grads]
    found = torch.zeros(())
    gradients.unscale(grads, torch.tensor(factor), found)
    return grads, found.item()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [None, torch.inf, -torch.inf, torch.nan])
def test_unscaling_is_that_of_torch_on_any_number_of_threads(monkeypatch, bad, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(half, "MANY", 1)
    sizes = ((7, 3), (300_001,), (0,), (2, 3, 4, 4), ())
    grads = [torch.randn(size) * 1e4 for size in sizes]
    grads[0][0, 0] = 1e-42
    grads[3] = grads[3].to(memory_format=torch.channels_last)
    if bad is not None:
        grads[1][300_000] = bad
    ours, found = unscaled(grads, 2**-16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(half, "library", lambda: None)
        theirs, expected = unscaled(grads, 2**-16)
    assert found == expected == (bad is not None)
    for mine, its in zip(ours, theirs, strict=True):
        assert torch.equal(bits(mine), bits(its))
        assert mine._version == its._version


def test_a_gradient_with_gaps_is_unscaled_by_torch(monkeypatch):
    monkeypatch.setattr(half, "MANY", 1)
    wide = torch.ones(4, 4)
    found = torch.zeros(())
    gradients.unscale([wide[:, ::2]], torch.tensor(0.5), found)
    assert wide.tolist() == [[0.5, 1.0, 0.5, 1.0]] * 4


@pytest.mark.parametrize("elements", [half.MANY - 1, half.MANY])
def test_gradients_are_unscaled_in_c_where_no_cache_holds_them(elements):
    if half.library() is None:
        pytest.skip("no C compiler")
    grads = [torch.ones(7), torch.ones(elements - 7)]
    done = half.unscale(grads, torch.tensor(0.5), torch.zeros(()))
    assert done is (elements == half.MANY)
    assert all(bool((grad == (0.5 if done else 1.0)).all()) for grad in grads)
