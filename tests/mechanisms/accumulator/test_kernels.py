"""fp16 accumulators, against a loop over single products and against float64."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.mechanisms.accumulator.kernels import DEPTH, accumulated, fp16_accumulation

PLAIN, CHANNELS_LAST = torch.contiguous_format, torch.channels_last


def by_hand(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Sum `DEPTH` products exactly, add them to a float16 of numpy's, and so on."""
    a, b = left.numpy().astype(np.float64), right.numpy().astype(np.float64)
    result = np.zeros((a.shape[0], b.shape[1]), dtype=np.float16)
    for row in range(a.shape[0]):
        for column in range(b.shape[1]):
            total = np.float16(0)
            for start in range(0, a.shape[1], DEPTH):
                chunk = slice(start, start + DEPTH)
                total = np.float16(float(total) + float(a[row, chunk] @ b[chunk, column]))
            result[row, column] = total
    return torch.from_numpy(result)


def test_matrix_products_are_those_of_a_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    # Few mantissa bits, so that fp32 sums of sixteen products are exact.
    left = torch.randint(-64, 64, (5, 100), generator=generator).half() / 8
    right = torch.randint(-64, 64, (100, 4), generator=generator).half() * 4
    assert torch.equal(accumulated(left, right), by_hand(left, right))


def test_long_sums_stall_and_overflow_on_the_way() -> None:
    ones = torch.ones(1, 40_000).half()
    with fp16_accumulation("cpu"):
        assert float(ones @ ones.T) == 32768
        back_and_forth = torch.tensor([[30000.0] * 16 + [-30000.0] * 16]).half()
        assert (back_and_forth @ torch.ones(32, 1).half()).isinf().all()


@pytest.mark.parametrize("transposed", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_convolutions_of_any_geometry_and_their_gradients(transposed, data) -> None:
    draw = data.draw
    torch.manual_seed(draw(st.integers(0, 2**31)))
    rank, groups, kernel = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    into, out_of = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    options = {
        "stride": draw(st.integers(1, 3)),
        "padding": draw(st.integers(0, 2)),
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
    }
    if transposed and options["stride"] > 1:
        options["output_padding"] = draw(st.integers(0, options["stride"] - 1))
    shape = (into, out_of // groups) if transposed else (out_of, into // groups)
    images = torch.randn(2, into, *[draw(st.integers(7, 9))] * rank).half() / 8
    leaves = [images, torch.randn(*shape, *[kernel] * rank).half() / 8, torch.randn(out_of).half()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    exact = function(*(leaf.double() for leaf in leaves), **options)
    cotangent = torch.randn_like(exact).half() / 8
    expected = torch.autograd.grad(exact, leaves, cotangent.double())
    with fp16_accumulation("cpu"):
        result = function(*leaves, **options)
        grads = torch.autograd.grad(result, leaves, cotangent)
    for ours, right in zip((result, *grads), (exact.detach(), *expected), strict=True):
        assert ours.dtype == torch.float16
        # Each addition of some hundred rounds to an fp16 no larger than the largest result.
        torch.testing.assert_close(
            ours.double(), right.double(), rtol=0, atol=0.02 * max(1.0, float(right.abs().max()))
        )


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("layouts", list(product([PLAIN, CHANNELS_LAST], repeat=3)))
def test_results_lie_in_memory_as_those_of_other_kernels(transposed, layouts) -> None:
    shapes = [(2, 3, 6, 5), (3, 3, 3, 3), (2, 3, 6, 5)]
    images, weight, cotangent = (
        torch.randn(shape).half().contiguous(memory_format=layout)
        for shape, layout in zip(shapes, layouts, strict=True)
    )
    geometry = ([1, 1], [1, 1], [1, 1], transposed, [0, 0], 1)

    def strides() -> list[tuple[int, ...]]:
        result = torch.ops.aten.convolution(images, weight, torch.zeros(3).half(), *geometry)
        grads = torch.ops.aten.convolution_backward(
            cotangent, images, weight, [3], *geometry, [True, True, True]
        )
        return [each.stride() for each in (result, *grads)]

    plain = strides()
    with fp16_accumulation("cpu"):
        assert strides() == plain


@pytest.mark.parametrize("beta", [0.0, 1.0, 0.5])
def test_added_matrices_are_scaled(beta: float) -> None:
    torch.manual_seed(0)
    start, left, right = torch.randn(4, 5), torch.randn(3, 4, 20), torch.randn(3, 20, 5)
    start, left, right = start.half(), left.half(), right.half()
    wide = beta * start.double()
    with fp16_accumulation("cpu"):
        pairs = [
            (torch.addmm(start, left[0], right[0], beta=beta, alpha=2), left[0], right[0]),
            (torch.baddbmm(start.expand(3, 4, 5), left, right, beta=beta, alpha=2), left, right),
        ]
        summed = torch.addbmm(start, left, right, beta=beta, alpha=2)
    for ours, a, b in pairs:
        expected = wide + 2 * (a.double() @ b.double())
        torch.testing.assert_close(ours.double(), expected, rtol=4e-3, atol=2e-2)
    expected = wide + 2 * (left.double() @ right.double()).sum(0)
    torch.testing.assert_close(summed.double(), expected, rtol=4e-3, atol=3e-2)


def test_bf16_is_left_alone() -> None:
    left, right = torch.randn(3, 40).bfloat16(), torch.randn(40, 3).bfloat16()
    plain = left @ right
    with fp16_accumulation("cpu"):
        assert torch.equal(left @ right, plain)
