"""Products of small half tensors in C++ against those in Python, bit for bit."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import conv2d, conv_transpose2d, linear

from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.native import small
from halfstep.kernels.products import ON
from halfstep.mechanisms.accumulator.kernels import fp16_accumulation
from halfstep.mechanisms.matmul.tf32 import tf32_products

HALVES = st.sampled_from([torch.float16, torch.bfloat16])
SIDES = st.sampled_from([0, 1, 2, 3, 7, 8, 16, 33, 64, 130])


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if small._library() is None:
        pytest.skip("no C++ compiler")


@contextmanager
def in_python():
    """Compute small products where large ones are computed."""
    real = small._library
    small._library = lambda: None
    try:
        yield
    finally:
        small._library = real


def both(function, *values):
    """Return what C++ and what Python computes, and its gradients where there are any."""
    results = []
    for place in (cpu_half, in_python):
        with place(), cpu_half():
            leaves = [each.detach().clone().requires_grad_() for each in values]
            result = function(*leaves)
            factor = torch.linspace(-2, 2, result.numel()).view(result.shape).to(result.dtype)
            results.append((result, *torch.autograd.grad(result, leaves, factor)))
    return results


def same(first, second):
    return all(
        a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
        for a, b in zip(first, second, strict=True)
    )


def matrix(generator, rows, columns, dtype, *, in_columns):
    shape = (columns, rows) if in_columns else (rows, columns)
    drawn = torch.randn(shape, generator=generator).to(dtype)
    return drawn.t() if in_columns else drawn


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_matrix_products_are_the_same_bits(data):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    dtype, batch = data.draw(HALVES), data.draw(st.integers(0, 3))
    rows, inner, columns = (data.draw(SIDES) for _ in range(3))
    orders = [data.draw(st.booleans()) for _ in range(2)]
    left = matrix(generator, rows, inner, dtype, in_columns=orders[0])
    right = matrix(generator, inner, columns, dtype, in_columns=orders[1])
    bias = torch.randn(columns, generator=generator).to(dtype)
    for function, values in (
        (torch.mm, (left, right)),
        (torch.addmm, (bias, left, right)),
        (lambda *v: torch.addmm(*v, beta=0.5, alpha=2), (bias, left, right)),
        (torch.addmm, (bias.new_ones(rows, columns), left, right)),
        (linear, (left, right.t(), bias)),
        (torch.bmm, (left.expand(batch, -1, -1), right.expand(batch, -1, -1).contiguous())),
    ):
        assert same(*both(function, *values))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolutions_are_the_same_bits(data):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    dtype, groups = data.draw(HALVES), data.draw(st.integers(1, 2))
    batch, side = data.draw(st.integers(0, 3)), data.draw(st.sampled_from([4, 9, 40]))
    images = torch.randn(batch, 2 * groups, side, side, generator=generator).to(dtype)
    if data.draw(st.booleans()):
        images = images.to(memory_format=torch.channels_last)
    weight = torch.randn(2 * groups, 2, 3, 3, generator=generator).to(dtype)
    options = {"stride": data.draw(st.integers(1, 2)), "padding": 1, "groups": groups}
    function = data.draw(st.sampled_from([conv2d, conv_transpose2d]))
    bias = torch.randn(2 * groups, generator=generator).to(dtype)
    assert same(*both(lambda *v: function(*v, **options), images, weight, bias))


def test_small_products_do_not_enter_python(monkeypatch):
    entered = []
    kept = ON["cpu"]._for
    monkeypatch.setattr(ON["cpu"], "_for", lambda values: entered.append(1) or kept(values))
    left, right = torch.randn(2, 9, 9).half()
    with cpu_half():
        assert torch.equal(left @ right, (left.float() @ right.float()).half())
        assert torch.equal(left.float() @ right.float(), left.float() @ right.float())
        assert not entered
        wide = torch.randn(200, 200).half()
        assert torch.equal(wide @ wide, (wide.float() @ wide.float()).half())
        assert entered


def test_an_interrupted_compilation_claims_nothing(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    assert not ON["cpu"].registered
    with monkeypatch.context() as patched:
        patched.setattr(small, "_library", interrupted)
        with pytest.raises(KeyboardInterrupt), cpu_half():
            pass
    assert ON["cpu"].arithmetic(torch.float16) is None
    left = torch.tensor([[1 + 2**-10, 1.0]]).half()
    with cpu_half():
        assert torch.equal(left @ left.t(), (left.float() @ left.float().t()).half())
    assert not ON["cpu"].registered


def test_products_of_another_arithmetic_are_left_to_it():
    left = torch.tensor([[1 + 2**-12, 1.0]])
    right = torch.tensor([[1.0], [0.0]])
    with cpu_half(), tf32_products("cpu"):
        assert (left @ right).item() == 1
    with cpu_half():
        assert (left @ right).item() == 1 + 2**-12
    ones = torch.ones(1, 4096).half()
    with cpu_half():
        assert (ones @ ones.t()).item() == 4096
        with fp16_accumulation("cpu"):
            assert (ones[:, :2049] @ ones.t()[:2049]).item() != 2049
            found = torch.tensor([[2048.0, 1.0]]).half() @ torch.ones(2, 1).half()
        assert found.item() == 2048


def test_what_pytorch_refuses_is_refused_in_its_words():
    cases = (
        (torch.mm, (torch.ones(2, 3).half(), torch.ones(2, 3).half())),
        (torch.mm, (torch.ones(2, 2).half(), torch.ones(2, 2).bfloat16())),
        (torch.mm, (torch.ones(2).half(), torch.ones(2, 2).half())),
        (torch.addmm, (torch.ones(3).half(), *torch.ones(2, 2, 2).half())),
        (torch.bmm, (torch.ones(2, 3, 2).half(), torch.ones(3, 2, 3).half())),
    )
    for function, values in cases:
        with pytest.raises(RuntimeError) as plain:
            function(*values)
        with cpu_half(), pytest.raises(RuntimeError) as ours:
            function(*values)
        assert str(ours.value).replace("float", "c10::Half") == str(plain.value) or (
            str(ours.value) == str(plain.value)
        )


def test_tensors_of_inference_are_multiplied_inside_and_outside():
    with cpu_half():
        with torch.inference_mode():
            images, weight = torch.randn(2, 3, 5, 5).half(), torch.randn(4, 3, 3, 3).half()
            inside = conv2d(images, weight)
        leaf = torch.randn(4, 3, 3, 3).half().requires_grad_()
        conv2d(torch.randn(2, 3, 5, 5).half(), leaf).sum().backward()
        assert leaf.grad is not None
        assert torch.equal(conv2d(images.clone(), weight.clone()), inside)
