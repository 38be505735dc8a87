"""SGD on fp32 parameters in one pass over memory: the bits, state and hooks of torch's step."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from halfstep import Engine
from halfstep.kernels.native import fused
from halfstep.optim import one_pass
from halfstep.optim.one_pass import OnePass

LARGE = 1 << 18
SHAPES = ((), (1,), (3, 5), (63,), (LARGE + 77,), (64, 65), (8, 16, 3, 3), (0, 2))
SIZE = 67
SETTINGS = [
    {},
    {"weight_decay": 0.01},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "weight_decay": 2e-3, "nesterov": True},
    {"momentum": 0.9, "maximize": True},
    {"momentum": 0.9, "foreach": True},
]


@pytest.fixture
def updated(monkeypatch) -> list[torch.Size]:
    """The shapes of what C updates, in turn."""
    if fused.library() is None:
        pytest.skip("no C compiler")
    fused._steps_as_torch()  # itself takes such steps, once
    step, shapes = fused.SGDOnArrays.step, []

    def counted(arrays, grads, settings):
        shapes.extend(grad.shape for grad in grads)
        step(arrays, grads, settings)

    monkeypatch.setattr(fused.SGDOnArrays, "step", counted)
    return shapes


def _one_pass(optimizer: torch.optim.Optimizer) -> OnePass:
    context = OnePass.of(optimizer)
    assert context is not None
    return context


def _parameter(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    value = torch.randn(shape, generator=source)
    return value.to(memory_format=torch.channels_last) if len(shape) == 4 else value


def _train(*, plain: bool = False, **settings):
    """Take four steps on random gradients, with inf and NaN among the last; rates change."""
    source = torch.Generator().manual_seed(0)
    params = [nn.Parameter(_parameter(shape, source)) for shape in SHAPES]
    optimizer = torch.optim.SGD(params, lr=0.1, **settings)
    context = nullcontext(optimizer) if plain else _one_pass(optimizer)
    for step in range(4):
        for param in params:
            param.grad = _parameter(param.shape, source)
            if step == 3:
                param.grad.flatten()[:1] = torch.nan
                param.grad.flatten()[1:2] = torch.inf
        optimizer.param_groups[0]["lr"] *= 0.9
        with context:
            optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_parameters_momentum_and_versions_are_those_of_torchs_step(updated, settings) -> None:
    params, optimizer = _train(**settings)
    its, reference = _train(plain=True, **settings)
    for one, other in zip(params, its, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
        buffer = optimizer.state[one].get("momentum_buffer")
        if buffer is not None:
            expected = reference.state[other]["momentum_buffer"]
            assert torch.equal(buffer.view(torch.int32), expected.view(torch.int32))
        assert one._version > 0
        assert one.grad is not None
    # The first step makes the momentum buffers.
    steps = 4 - bool(settings.get("momentum"))
    ours = not {"maximize", "foreach"} & settings.keys()
    assert updated == [*SHAPES] * steps * ours


def test_hooks_see_weights_and_gradients_before_and_after_the_step(updated) -> None:
    source = torch.Generator().manual_seed(0)
    param = nn.Parameter(torch.randn(SIZE, generator=source))
    optimizer = torch.optim.SGD([param], lr=0.5)
    seen = []

    def look(*_: object) -> None:
        assert param.grad is not None
        assert optimizer.param_groups[0]["params"] == [param]
        seen.append((param.detach().clone(), param.grad.clone()))

    optimizer.register_step_pre_hook(look)
    optimizer.register_step_post_hook(look)
    param.grad = torch.randn(SIZE, generator=source)
    with _one_pass(optimizer):
        optimizer.step()
    (before, grad), (after, same_grad) = seen
    assert updated
    assert torch.equal(after, before.add(grad, alpha=-0.5))
    assert torch.equal(grad, same_grad)


def test_a_closure_makes_its_gradients_before_the_update(updated) -> None:
    param = nn.Parameter(torch.zeros(SIZE))
    optimizer = torch.optim.SGD([param], lr=1.0)
    param.grad = torch.full((SIZE,), 5.0)

    def closure() -> float:
        param.grad = torch.ones(SIZE)
        return 0.0

    with _one_pass(optimizer):
        optimizer.step(closure)
    assert torch.equal(param, torch.full((SIZE,), -1.0))
    assert not updated


def test_a_dispatch_mode_hears_the_update(updated) -> None:
    param = nn.Parameter(torch.zeros(SIZE))
    optimizer = torch.optim.SGD([param], lr=1.0)
    param.grad = torch.ones(SIZE)
    heard = []

    class Hearing(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            heard.append(function.overloadpacket)
            return function(*args, **(kwargs or {}))

    with Hearing(), _one_pass(optimizer):
        optimizer.step()
    assert torch.ops.aten.add_ in heard
    assert not updated


def _others_data(params, optimizer) -> None:
    for param in params:
        param.data = param.data.clone()


def _transposed(params, optimizer) -> None:
    params[0].data = params[0].data.t()  # at the same address
    params[0].grad = None


def _loaded(params, optimizer) -> None:
    optimizer.load_state_dict(deepcopy(optimizer.state_dict()))


def _without_momentum(params, optimizer) -> None:
    optimizer.param_groups[0]["momentum"] = 0.0


def _one_more(params, optimizer) -> None:
    params.append(nn.Parameter(torch.ones(3)))
    optimizer.add_param_group({"params": params[-1:]})


def _frozen(params, optimizer) -> None:
    params[1].requires_grad = False
    params[1].grad = None


def _half(params, optimizer) -> None:
    params[2].data = params[2].data.bfloat16()
    params[2].grad = None


@pytest.mark.parametrize(
    "change",
    [_others_data, _transposed, _loaded, _without_momentum, _one_more, _frozen, _half],
)
def test_tensors_and_settings_may_change_between_steps(updated, change) -> None:
    def run(context) -> list[torch.Tensor]:
        source = torch.Generator().manual_seed(0)
        params = [nn.Parameter(torch.randn(4, 4, generator=source)) for _ in range(3)]
        optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        context = context(optimizer)
        for step in range(6):
            if step == 3:
                change(params, optimizer)
            for param in params:
                if param.requires_grad:
                    grad = torch.randn(param.shape, generator=source)
                    param.grad = grad.to(param.dtype).as_strided(param.shape, param.stride())
            with context:
                optimizer.step()
        return [*params, *(state["momentum_buffer"] for state in optimizer.state.values())]

    ours, reference = run(_one_pass), run(nullcontext)
    assert len(updated) > 10
    for one, other in zip(ours, reference, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("other", [torch.Tensor.to_sparse, torch.Tensor.bfloat16])
def test_a_gradient_of_another_kind_is_left_to_torch(updated, other) -> None:
    def run(context) -> torch.Tensor:
        param = nn.Parameter(torch.ones(3, 2))
        optimizer = torch.optim.SGD([param], lr=0.1)
        context = context(optimizer)
        for step in range(4):
            grad = torch.full((3, 2), float(step))
            if step > 1:
                grad = other(grad)
                param.grad = None
                param.grad_dtype = grad.dtype
            param.grad = grad
            with context:
                optimizer.step()
        return param.detach()

    assert torch.equal(run(_one_pass), run(nullcontext))
    assert len(updated) == 2


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_a_parameter_that_is_in_a_group_twice_is_left_to_torch(updated) -> None:
    def run(context) -> torch.Tensor:
        param = nn.Parameter(torch.ones(5))
        optimizer = torch.optim.SGD([param, param], lr=0.1, momentum=0.9)
        context = context(optimizer)
        for step in range(3):
            param.grad = torch.full((5,), float(step))
            with context:
                optimizer.step()
        return param.detach()

    assert torch.equal(run(_one_pass), run(nullcontext))
    assert not updated


def test_arrays_are_kept_from_step_to_step(updated, monkeypatch) -> None:
    made, kept = [], one_pass._Kept
    monkeypatch.setattr(one_pass, "_Kept", lambda *args: made.append(args) or kept(*args))
    _train(momentum=0.9)
    assert len(made) == 2


def test_an_optimizer_without_fp32_parameters_and_another_are_left_alone() -> None:
    wide = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    assert OnePass.of(torch.optim.SGD([wide], lr=1.0)) is None
    assert OnePass.of(torch.optim.Adam([nn.Parameter(torch.zeros(3))])) is None


def test_a_compiled_step_is_left_alone() -> None:
    param = nn.Parameter(torch.zeros(SIZE))
    optimizer = torch.optim.SGD([param], lr=1.0)
    optimizer.step = torch.compile(optimizer.step, backend="eager")
    with _one_pass(optimizer):
        assert not optimizer._optimizer_step_pre_hooks


def test_gradients_are_back_after_a_step_that_fails(updated) -> None:
    param = nn.Parameter(torch.zeros(SIZE))
    optimizer = torch.optim.SGD([param], lr=1.0)
    param.grad = grad = torch.ones(SIZE)

    def take() -> None:
        with _one_pass(optimizer):
            optimizer.step()

    optimizer._optimizer_step_code = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        take()
    assert param.grad is grad


@pytest.mark.parametrize(
    ("recipe", "passes"), [("fp32", 2), ("fp16", 2), ("bf16", 2), ("o2", 2), ("bf16-sr", 0)]
)
def test_recipes_take_the_pass_and_skip_overflows_as_before(
    monkeypatch, updated, recipe, passes
) -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(256, 513)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with Engine(model, optimizer, recipe=recipe) as engine:
            for factor in (1.0, 1.0, float("inf"), 1.0):
                with engine.autocast():
                    loss = engine.model(torch.ones(2, 256)).float().square().mean()
                if not engine.recipe.loss_scale and factor > 1:
                    continue
                engine.backward(loss * factor)
                engine.step()
        return [param.detach().clone() for param in model.parameters()]

    in_one_pass = run()
    assert updated == [(513, 256), (513,)] * passes
    monkeypatch.setattr(fused, "library", lambda: None)
    for one, other in zip(in_one_pass, run(), strict=True):
        assert torch.equal(one, other)
