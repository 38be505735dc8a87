"""The engine against the plain PyTorch loop, `torch.amp.GradScaler`, and itself in larger batches.

Equal means every bit, unless a test says what rounding it allows.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, AdamW

from halfstep.engine import Engine
from halfstep.kernels.cpu_half import cpu_half
from halfstep.kernels.cuda_policy import cuda_autocast_policy

from .tiny import differences, digits_net, mlp, relative_error

OPTIMIZERS = {
    "sgd": partial(SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adamw": partial(AdamW, lr=1e-2),
}
CLIPPING: dict[str, dict[str, float]] = {
    "unclipped": {},
    "norm": {"clip_norm": 0.5},
    "value": {"clip_value": 0.01},
}


def clip(parameters: Any, clip_norm: float | None = None, clip_value: float | None = None) -> None:
    if clip_norm is not None:
        clip_grad_norm_(parameters, clip_norm)
    if clip_value is not None:
        clip_grad_value_(parameters, clip_value)


@pytest.mark.parametrize("clipping", CLIPPING.values(), ids=CLIPPING)
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_fp32_engine_equals_the_plain_loop_bitwise(digits, build, accumulate, clipping) -> None:
    batches = digits.batches(16, 10)
    plain = digits_net()
    optimizer = build(plain.parameters())
    for start in range(0, len(batches), accumulate):
        window = batches[start : start + accumulate]
        for images, labels in window:
            # The last window has 2 of 4: a power of two, so that either order of division is exact.
            (cross_entropy(plain(images), labels) / len(window)).backward()
        clip(plain.parameters(), **clipping)
        optimizer.step()
        optimizer.zero_grad()

    model = digits_net()
    with Engine(model, build(model.parameters()), accumulate=accumulate, **clipping) as engine:
        closed = []
        for images, labels in engine.batches(iter(batches)):
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
            engine.backward(loss)
            closed.append(engine.step().closed)

    assert not differences(model.state_dict(), plain.state_dict())
    assert not differences(engine.optimizer.state_dict(), optimizer.state_dict())
    assert sum(closed) == engine.steps == -(-10 // accumulate)


def gradscaler_loop(
    model: nn.Module, batches: Any, *, restore: bool
) -> tuple[dict[str, Any], list[float]]:
    """Train as the documentation of torch.amp shows: accumulate 4, clip to norm 1.

    Args:
        model: What to train.
        batches: 4 micro-batches for each step.
        restore: Whether a step that is skipped puts back the buffers, as nobody does.
    """
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=7)
    scales = []
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for place, (images, labels) in enumerate(batches):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(images), labels) / 4
        scaler.scale(loss).backward()
        if place % 4 == 3:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), 1.0)
            used = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if restore and scaler.get_scale() < used:
                model.load_state_dict(before, strict=False)
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            scales.append(scaler.get_scale())
    return optimizer.state_dict(), scales


def test_fp16_engine_equals_a_gradscaler_loop_bitwise_and_keeps_batchnorm_clean(digits) -> None:
    batches = digits.batches(4, 200)
    overflowing = 4 * 20 + 1
    batches[overflowing] = (batches[overflowing][0] * 1e30, batches[overflowing][1])
    plain, restored, model = digits_net(), digits_net(), digits_net()
    with cpu_half(), cuda_autocast_policy():  # what the engine computes with, too
        _, scales = gradscaler_loop(plain, batches, restore=False)
        state, _ = gradscaler_loop(restored, batches, restore=True)

    recipe = {"base": "fp16", "loss_scale": {"init": 2.0**12, "growth_interval": 7}}
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    results, seen = [], []
    with Engine(model, optimizer, recipe=recipe, accumulate=4, clip_norm=1.0) as engine:
        for images, labels in batches:
            with engine.autocast():
                loss = cross_entropy(engine.model(images), labels)
            engine.backward(loss)
            result = engine.step()
            if result.closed:
                results.append(result)
                seen.append(engine.loss_scale)

    assert seen == scales
    assert max(scales) > 2.0**12
    assert [place for place, result in enumerate(results) if result.skipped] == [20]
    assert not differences(optimizer.state_dict(), state)
    assert not differences(dict(model.named_parameters()), dict(plain.named_parameters()))
    assert not differences(model.state_dict(), restored.state_dict())
    # The plain loop's statistics never recover from the step that it skipped.
    assert not plain.batch_norm.running_var.isfinite().all()
    assert model.batch_norm.running_var.isfinite().all()


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "bf16"])
def test_micro_batches_add_up_to_one_large_batch(recipe: str) -> None:
    torch.manual_seed(1)
    inputs, targets = torch.randn(24, 6), torch.randn(24, 3)

    def train(sizes: list[int], *, samples: bool) -> torch.Tensor:
        model = mlp()
        start = torch.cat([p.detach().flatten() for p in model.parameters()])
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        with Engine(model, optimizer, recipe=recipe, accumulate=len(sizes)) as engine:
            for _ in range(3):
                for x, y in zip(inputs.split(sizes), targets.split(sizes), strict=True):
                    with engine.autocast():
                        loss = mse_loss(engine.model(x), y)
                    engine.backward(loss, samples=len(x) if samples else None)
                    result = engine.step()
                assert result.stepped
        return torch.cat([p.detach().flatten() for p in model.parameters()]) - start

    # Sums in another order, rounded to the format of the products: a few of its units.
    tolerance = {"fp32": 1e-5, "fp16": 5e-3, "bf16": 4e-2}[recipe]
    large = train([24], samples=False)
    assert relative_error(train([6, 6, 6, 6], samples=False), large) < tolerance
    assert relative_error(train([2, 10, 5, 7], samples=True), large) < tolerance
    assert relative_error(train([2, 10, 5, 7], samples=False), large) > 5 * tolerance


@pytest.mark.parametrize("left", [1, 2, 3])
@pytest.mark.parametrize("recipe", ["fp32", "fp16"])
def test_an_uneven_last_window_weighs_its_batches_fully(recipe: str, left: int) -> None:
    torch.manual_seed(1)
    micro = [(torch.randn(5, 6), torch.randn(5, 3)) for _ in range(left)]
    model, plain = mlp(), mlp()
    sum(mse_loss(plain(x), y) / left for x, y in micro).backward()

    for close in ("batches", "by hand"):
        model = mlp()
        with Engine(model, SGD(model.parameters(), lr=1.0), recipe=recipe, accumulate=4) as engine:
            for x, y in engine.batches(micro) if close == "batches" else micro:
                with engine.autocast():
                    loss = mse_loss(engine.model(x), y)
                engine.backward(loss)
                result = engine.step(close=close == "by hand" and x is micro[-1][0])
            assert result.stepped
        for moved, start, param in zip(
            model.parameters(), mlp().parameters(), plain.parameters(), strict=True
        ):
            assert relative_error(start - moved, param.grad) < {"fp32": 1e-6, "fp16": 5e-3}[recipe]


def test_uneven_micro_batches_in_an_uneven_window() -> None:
    torch.manual_seed(1)
    inputs, targets = torch.randn(9, 6), torch.randn(9, 3)
    plain = mlp()
    mse_loss(plain(inputs), targets).backward()
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=1.0), accumulate=4) as engine:
        pairs = zip(inputs.split([4, 2, 3]), targets.split([4, 2, 3]), strict=True)
        for x, y in engine.batches(pairs):
            engine.backward(mse_loss(engine.model(x), y), samples=len(x))
            engine.step()
    for moved, start, param in zip(
        model.parameters(), mlp().parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(start - moved, param.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(4, 0, 2), (0, 4, 2), (4, 2, 0), (0, 0, 6)])
def test_an_empty_micro_batch_is_counted_and_weighs_nothing(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    inputs, targets = torch.randn(6, 6), torch.randn(6, 3)
    plain, model = mlp(), mlp()
    mse_loss(plain(inputs), targets).backward()
    with Engine(model, SGD(model.parameters(), lr=1.0), accumulate=4) as engine:
        for x, y in engine.batches(zip(inputs.split(sizes), targets.split(sizes), strict=True)):
            loss = mse_loss(engine.model(x), y) if len(x) else engine.model(inputs).sum() * 0
            engine.backward(loss, samples=len(x))
            engine.step()
    for moved, start, param in zip(
        model.parameters(), mlp().parameters(), plain.parameters(), strict=True
    ):
        torch.testing.assert_close(start - moved, param.grad, rtol=1e-5, atol=1e-6)


def test_samples_for_some_micro_batches_only_is_refused() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=1.0), accumulate=2) as engine:
        engine.backward(model(torch.ones(4, 6)).mean(), samples=4)
        engine.step()
        with pytest.raises(RuntimeError, match="samples was given for some micro-batches"):
            engine.backward(model(torch.ones(4, 6)).mean())


def test_batches_closes_no_window_after_a_loop_was_left_early() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=1.0), accumulate=2) as engine:
        for _ in engine.batches([1]):
            break
        engine.backward(model(torch.ones(4, 6)).mean())
        assert not engine.step().closed


def test_evaluating_restores_every_mode_and_makes_no_graph() -> None:
    model = mlp(norm=True)
    model.train()
    model[1].eval()
    with Engine(model, SGD(model.parameters(), lr=1.0), recipe="bf16") as engine:
        modes = [module.training for module in model.modules()]
        with contextlib.suppress(KeyboardInterrupt), engine.evaluating():
            assert not any(module.training for module in model.modules())
            output = engine.model(torch.ones(2, 6))
            assert output.dtype == torch.bfloat16
            assert not output.requires_grad
            raise KeyboardInterrupt
        assert [module.training for module in model.modules()] == modes
        assert modes == [True, True, False, True, True]


def test_one_of_many_models_must_be_named() -> None:
    models = [mlp(0), mlp(1)]
    optimizers = [SGD(model.parameters(), lr=1.0) for model in models]
    with Engine(models, optimizers) as engine:
        assert engine.models == models
        with pytest.raises(ValueError, match=r"2 models; write engine\.models\[i\]"):
            _ = engine.model
        with pytest.raises(ValueError, match=r"2 optimizers; write engine\.optimizers\[i\]"):
            _ = engine.optimizer


def test_zero_grad_starts_the_window_anew() -> None:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=1.0), accumulate=2) as engine:
        engine.backward(model(torch.ones(4, 6)).mean())
        engine.step()
        engine.zero_grad()
        assert all(param.grad is None for param in model.parameters())
        engine.backward(model(torch.ones(4, 6)).mean())
        assert not engine.step().closed
