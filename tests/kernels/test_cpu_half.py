"""The registration of the kernels: counted, given back, and out of everyone's way."""

from __future__ import annotations

import shutil
import threading

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as everywhere in torch
from torch.utils.checkpoint import checkpoint

import halfstep
from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.native import small
from halfstep.kernels.products import ON

NAMES = ("convolution", "convolution_backward", "mm", "addmm.out", "baddbmm_", "dot")


def registered():
    """Whether our kernels stand in the dispatcher, by operator."""
    handles = [repr(torch.library.get_kernel(f"aten::{name}", "CPU")) for name in NAMES]
    return ["registration.py" in handle or "small.cpp" in handle for handle in handles]


@pytest.fixture(autouse=True)
def _given_back():
    yield
    assert not any(registered())
    assert not ON["cpu"].registered


@pytest.fixture
def widened(monkeypatch):
    """The dtypes that the kernels narrowed to, small products computed in Python as well."""
    monkeypatch.setattr(small, "_library", lambda: None)
    seen = []
    narrow = halfstep.kernels.widen.narrowed
    monkeypatch.setattr(
        halfstep.kernels.widen,
        "narrowed",
        lambda result, dtype: seen.append(dtype) or narrow(result, dtype),
    )
    return seen


def half_step(dtype=torch.float16):
    """Return the loss and gradient of a small half network."""
    torch.manual_seed(0)
    images = torch.randn(2, 3, 8, 8).to(dtype)
    weight = torch.randn(4, 3, 3, 3).to(dtype).requires_grad_()
    loss = F.conv2d(images, weight).relu().mean()
    loss.backward()
    return loss.detach(), weight.grad


def test_nested_contexts_give_back_at_the_last_exit():
    with cpu_half():
        with cpu_half():
            assert all(registered())
        assert all(registered())
    assert not any(registered())


def test_an_exception_gives_back():
    with pytest.raises(KeyError), cpu_half():
        raise KeyError


def test_contexts_of_two_threads_overlap():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with cpu_half():
            inside.set()
            leave.wait()

    thread = threading.Thread(target=other)
    with cpu_half():
        thread.start()
        inside.wait()
    assert all(registered())
    leave.set()
    thread.join()


def test_an_unrelated_thread_computes_the_same_and_backwards_too(widened):
    results = []
    with cpu_half():
        thread = threading.Thread(target=lambda: results.append(half_step()))
        thread.start()
        thread.join()
        here = half_step()
    assert all(torch.equal(a, b) for a, b in zip(here, results[0], strict=True))
    assert widened
    thread = threading.Thread(target=lambda: results.append(half_step()))
    thread.start()
    thread.join()
    torch.testing.assert_close(results[1], here, rtol=2e-3, atol=1e-3)


def test_checkpointing_recomputes_the_same():
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 3, 3).half()
    images = torch.randn(2, 3, 8, 8).half().requires_grad_()
    with cpu_half():
        plain = torch.autograd.grad(layer(images).sum(), [images, *layer.parameters()])
        again = torch.autograd.grad(
            checkpoint(layer, images, use_reentrant=False).sum(), [images, *layer.parameters()]
        )
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_second_derivatives_work(widened):
    images = torch.randn(2, 3, 6, 6).half().requires_grad_()
    weight = torch.randn(4, 3, 3, 3).half().requires_grad_()
    with cpu_half():
        result = (F.conv2d(images, weight) ** 2).mean()
        (grad,) = torch.autograd.grad(result, images, create_graph=True)
        (second,) = torch.autograd.grad(grad.pow(2).sum(), weight)
    wide = [each.detach().float().requires_grad_() for each in (images, weight)]
    (grad,) = torch.autograd.grad((F.conv2d(*wide) ** 2).mean(), wide[0], create_graph=True)
    (expected,) = torch.autograd.grad(grad.pow(2).sum(), wide[1])
    torch.testing.assert_close(second.float(), expected, rtol=2e-2, atol=2e-2)


def test_a_graph_traced_by_aot_runs_on_the_kernels(widened):
    torch.manual_seed(0)
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(144, 5)
    )
    layer.half()
    images = torch.randn(2, 3, 8, 8).half()
    with cpu_half():
        expected = layer(images)
        widened.clear()
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)(images)
        assert len(widened) == 2
    assert torch.equal(compiled, expected)
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("recipe", ["fp16", "half", "o2", "tf32", "fp8"])
def test_compiled_models_train_as_eager_ones_do(recipe, digits):
    curves = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 16, 3),
            torch.nn.BatchNorm2d(16),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(576, 16),
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with halfstep.Engine(model, optimizer, recipe=recipe) as engine:
            if compiled:
                engine.model.compile()
            curve = []
            for images, labels in digits.batches(8, 4):
                with engine.autocast():
                    loss = F.cross_entropy(engine.model(images), labels)
                engine.backward(loss)
                engine.step()
                curve.append(loss.detach().float())
        curves.append(torch.stack(curve))
        torch.compiler.reset()
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-2, atol=1e-3)


def test_a_processor_with_half_units_computes_the_same(widened, monkeypatch):
    for name in ("_is_mkldnn_bf16_supported", "_is_mkldnn_fp16_supported"):
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: True)
    with cpu_half():
        half_step(torch.bfloat16)
        half_step(torch.float16)
    assert set(widened) == {torch.bfloat16, torch.float16}


def losses(dtype, digits, steps=200):
    """Return the loss curve of a small convolutional network, all in `dtype`."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    curve = []
    for images, labels in digits.batches(16, steps):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        (loss * 128).backward()
        for param in model.parameters():
            param.grad /= 128
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)


def test_a_loss_curve_stays_as_close_to_native_as_native_to_single(digits):
    single, native = losses(torch.float32, digits), losses(torch.float16, digits)
    with cpu_half():
        ours = losses(torch.float16, digits)
    assert (ours - native).abs().mean() <= 2 * (native - single).abs().mean()
    assert (ours - native).abs().max() <= 2 * (native - single).abs().max()
    assert (native - single).abs().max() > 0
