"""Each overridden operator against float64: forward and every gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.scratch import scratch

from .reference import assert_rounded_once

HALVES = [torch.float16, torch.bfloat16]
dtypes = st.sampled_from(HALVES)
seeds = st.integers(0, 2**31)
# The last ones overflow fp16.
scales = st.sampled_from([1e-3, 1.0, 30.0, 300.0])
sizes = st.integers(0, 9)


@pytest.fixture(autouse=True, scope="module")
def _kernels():
    with cpu_half():
        yield


def random(shape, dtype, scale, generator, *, layout="plain"):
    """Return a half tensor of a shape, in memory as `layout` says."""
    if layout == "strided":
        wide = torch.randn([*shape[:-1], 2 * shape[-1]], generator=generator)
        return (wide * scale).to(dtype)[..., ::2]
    if layout == "swapped":
        swapped = [*shape[:-2], shape[-1], shape[-2]]
        return (torch.randn(swapped, generator=generator) * scale).to(dtype).mT
    value = (torch.randn(shape, generator=generator) * scale).to(dtype)
    if layout == "channels_last":
        value = value.contiguous(memory_format=torch.channels_last)
    return value


layouts = st.sampled_from(["plain", "strided", "swapped"])


# The same shapes in every run: a gradient of torch's own fp32 kernel has aborted a process, rarely.
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_convolution_and_its_gradients_are_rounded_once(data):
    draw = data.draw
    dtype, scale = draw(dtypes), draw(scales)
    generator = torch.Generator().manual_seed(draw(seeds))
    groups, kernel = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(1, 3))
    into, out_of = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    transposed = draw(st.booleans())
    options = {
        "stride": draw(st.integers(1, 2)),
        "padding": draw(st.integers(0, 1)),
        "dilation": draw(st.integers(1, 2)),
        "groups": groups,
    }
    side = draw(st.integers(5, 9))
    batch = draw(st.integers(0, 3))
    layout = draw(st.sampled_from(["plain", "strided", "channels_last"]))
    images = random([batch, into, side, side], dtype, scale, generator, layout=layout)
    shape = [into, out_of // groups] if transposed else [out_of, into // groups]
    weight = random([*shape, kernel, kernel], dtype, scale, generator)
    bias = random([out_of], dtype, scale, generator)
    function = F.conv_transpose2d if transposed else F.conv2d

    leaves = [each.detach().requires_grad_() for each in (images, weight, bias)]
    result = function(*leaves, **options)
    cotangent = random(result.shape, dtype, 1.0, generator)
    grads = torch.autograd.grad(result, leaves, cotangent)
    exact, exact_grads = in_float64(function, leaves, cotangent, options, magnitude=False)
    size, size_grads = in_float64(function, leaves, cotangent, options, magnitude=True)

    products = max(into, out_of) // groups * kernel**2 + 1
    pixels = batch * max(result.shape[-1], side) ** 2
    assert_rounded_once(result, exact, size, products)
    for grad, right, magnitude, terms in zip(
        grads, exact_grads, size_grads, (products, pixels, pixels), strict=True
    ):
        assert grad.dtype == dtype
        assert_rounded_once(grad, right, magnitude, terms)


def in_float64(function, leaves, cotangent, options, *, magnitude):
    """Return the result and gradients in float64, or with all inputs' absolute values."""
    wide = [leaf.detach().double() for leaf in leaves]
    cotangent = cotangent.double()
    if magnitude:
        wide, cotangent = [leaf.abs() for leaf in wide], cotangent.abs()
    wide = [leaf.requires_grad_() for leaf in wide]
    result = function(*wide, **options)
    return result.detach(), torch.autograd.grad(result, wide, cotangent)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_products_and_their_gradients_are_rounded_once(data):
    draw = data.draw
    dtype, scale = draw(dtypes), draw(scales)
    generator = torch.Generator().manual_seed(draw(seeds))
    batch, rows, inner, columns = (draw(sizes) for _ in range(4))
    function, shapes = draw(
        st.sampled_from(
            [
                (torch.mm, ([rows, inner], [inner, columns])),
                (torch.bmm, ([batch, rows, inner], [batch, inner, columns])),
                (torch.addmm, ([rows, columns], [rows, inner], [inner, columns])),
                (torch.addmm, ([columns], [rows, inner], [inner, columns])),
                (
                    torch.baddbmm,
                    ([batch, rows, columns], [batch, rows, inner], [batch, inner, columns]),
                ),
                (
                    torch.addbmm,
                    ([rows, columns], [batch, rows, inner], [batch, inner, columns]),
                ),
                (torch.mv, ([rows, inner], [inner])),
                (torch.addmv, ([rows], [rows, inner], [inner])),
                (torch.dot, ([inner], [inner])),
                (F.linear, ([batch, rows, inner], [columns, inner], [columns])),
            ]
        )
    )
    # What linear cannot flatten, torch itself composes of two operators and so two roundings.
    layout = draw(layouts) if function is not F.linear else "plain"
    leaves = [
        random(shape, dtype, scale, generator, layout=layout if len(shape) > 1 else "plain")
        .detach()
        .requires_grad_()
        for shape in shapes
    ]
    result = function(*leaves)
    cotangent = random(result.shape, dtype, 1.0, generator)
    grads = torch.autograd.grad(result, leaves, cotangent)
    exact, exact_grads = in_float64(function, leaves, cotangent, {}, magnitude=False)
    size, size_grads = in_float64(function, leaves, cotangent, {}, magnitude=True)
    terms = max(batch, 1) * max(rows, inner, columns) + 1
    assert_rounded_once(result, exact, size, terms)
    for grad, right, magnitude in zip(grads, exact_grads, size_grads, strict=True):
        assert grad.dtype == dtype
        assert_rounded_once(grad, right, magnitude, terms)


@pytest.mark.parametrize("dtype", HALVES)
def test_scaled_sums_round_once_into_any_target(dtype):
    generator = torch.Generator().manual_seed(3)
    start, left, right = (random([8, 8], dtype, 1.0, generator) for _ in range(3))
    exact = 0.5 * start.double() + 2 * (left.double() @ right.double())
    size = 0.5 * start.double().abs() + 2 * (left.double().abs() @ right.double().abs())
    new = torch.addmm(start, left, right, beta=0.5, alpha=2)
    out = torch.empty(0, dtype=dtype)
    assert torch.addmm(start, left, right, beta=0.5, alpha=2, out=out) is out
    inplace = start.clone()
    assert inplace.addmm_(left, right, beta=0.5, alpha=2) is inplace
    for result in (new, out, inplace):
        assert_rounded_once(result, exact, size, 9)
    assert torch.equal(torch.mm(left, right, out=torch.empty(8, 8, dtype=dtype)), left @ right)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_fp32_rounded_once(dtype, masked, causal):
    if masked and causal:
        pytest.skip("torch takes one of them")
    generator = torch.Generator().manual_seed(5)
    leaves = [random([2, 3, 9, 8], dtype, 1.0, generator).requires_grad_() for _ in range(3)]
    mask = torch.ones(9, 9, dtype=torch.bool).tril() if masked else None
    result = F.scaled_dot_product_attention(*leaves, attn_mask=mask, is_causal=causal)
    cotangent = random(result.shape, dtype, 1.0, generator)
    grads = torch.autograd.grad(result, leaves, cotangent)

    wide = [leaf.detach().double() for leaf in leaves]
    exact = F.scaled_dot_product_attention(*wide, attn_mask=mask, is_causal=causal)
    sizes, terms = attention_sizes(wide, exact, cotangent.double(), mask, causal)
    assert_rounded_once(result, exact, sizes[0], terms)
    # The backward sees the rounded output, as fused kernels of GPUs do.
    exact_grads = attention_gradients(
        wide, result.detach().double(), cotangent.double(), mask, causal
    )
    for grad, right, size in zip(grads, exact_grads, sizes[1:], strict=True):
        assert_rounded_once(grad, right, size, terms)


def attention_sizes(leaves, output, cotangent, mask, causal):
    """Sum what is multiplied in absolute values, and count the roundings that reach a result.

    A score that is off by e makes its weight off by a factor of exp(e), and the sum of the row too.
    """
    query, key, value = leaves
    scale, width, length = query.shape[-1] ** -0.5, query.shape[-1], key.shape[-2]
    weights = attention_weights(query, key, mask, causal)
    largest_score = float((query.abs() @ key.abs().mT).max()) * scale
    reach = cotangent.abs() @ value.abs().mT + (cotangent * output).abs().sum(-1, keepdim=True)
    by_scores = weights * reach * scale
    sizes = (
        weights @ value.abs(),
        by_scores @ key.abs(),
        by_scores.mT @ query.abs(),
        weights.mT @ cotangent.abs(),
    )
    return sizes, length + width + 2 * (width + 2) * largest_score + 8


def attention_weights(query, key, mask, causal):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if mask is not None or causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1)


def attention_gradients(leaves, output, cotangent, mask, causal):
    """The closed form (FlashAttention, arXiv:2205.14135, appendix B.4), in float64."""
    query, key, value = leaves
    scale = query.shape[-1] ** -0.5
    weights = attention_weights(query, key, mask, causal)
    inner = (cotangent * output).sum(-1, keepdim=True)
    by_scores = weights * (cotangent @ value.mT - inner) * scale
    return by_scores @ key, by_scores.mT @ query, weights.mT @ cotangent


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_propagates(dtype, value):
    left, right = torch.ones(4, 4, dtype=dtype), torch.ones(4, 4, dtype=dtype)
    left[1, 2] = value
    assert torch.equal(
        (left @ right).isfinite(), torch.tensor([True, False, True, True])[:, None].expand(4, 4)
    )
    images = torch.ones(2, 1, 3, 3, dtype=dtype)
    images[1, 0, 1, 1] = value
    result = F.conv2d(images, torch.ones(1, 1, 3, 3, dtype=dtype))
    assert result.isfinite().flatten().tolist() == [True, False]


def test_mixed_formats_are_still_refused():
    with pytest.raises(RuntimeError, match="dtype"):
        torch.mm(torch.ones(2, 2).half(), torch.ones(2, 2))
    with pytest.raises(RuntimeError, match="type"):
        F.conv2d(torch.ones(1, 1, 3, 3).half(), torch.ones(1, 1, 3, 3))


def test_single_precision_is_left_bit_for_bit():
    left, right = torch.randn(33, 47), torch.randn(47, 21)
    inside = left @ right
    assert inside.dtype == torch.float32
    assert torch.equal(inside, torch.linalg.multi_dot([left, right]))
    assert (inside - left.half().float() @ right.half().float()).abs().max() > 1e-6


def test_what_lies_on_another_device_is_widened_there():
    wide = scratch.widen(torch.empty(4, dtype=torch.float16, device="meta"), 0)
    assert (wide.device.type, wide.dtype) == ("meta", torch.float32)
