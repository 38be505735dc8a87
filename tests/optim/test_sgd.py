"""A step of SGD with one call for all parameters: the bits and the state of torch's own."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial, wraps
from types import MethodType
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ConstantLR
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode

from halfstep import Engine
from halfstep.optim import sgd
from halfstep.optim.sgd import MOST
from halfstep.optim.watched import is_replaced, torchs_step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHAPES = ((5, 7), (5,), (3, 2, 3, 3), (3,), ())
SETTINGS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.3},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-2},
    {"weight_decay": 1e-2},
    {"momentum": 0.9, "maximize": True},
]


def _params(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape).to(dtype)) for shape in SHAPES]


def _step(optimizer: SGD) -> None:
    if not sgd.step(optimizer):
        optimizer.step()


def _train(step: Callable[[SGD], object], settings: dict, dtype: torch.dtype, steps: int = 6):
    """Train with random gradients; each step leaves another parameter out, and rates change."""
    params = _params(dtype)
    optimizer = SGD(
        [{"params": params[:3]}, {"params": params[3:], "lr": 0.05}], lr=0.1, **settings
    )
    generator = torch.Generator().manual_seed(1)
    for number in range(steps):
        for place, param in enumerate(params):
            gradient = torch.randn(param.shape, generator=generator).to(dtype)
            param.grad = None if place == number else gradient
        step(optimizer)
        optimizer.param_groups[0]["lr"] *= 0.9
    return params, optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_parameters_and_state_are_those_of_torchs_step_bit_for_bit(settings, dtype) -> None:
    own, optimizer = _train(_step, settings, dtype)
    params, reference = _train(SGD.step, settings, dtype)
    for mine, its in zip(own, params, strict=True):
        assert torch.equal(mine, its)
    states, others = optimizer.state_dict(), reference.state_dict()
    assert states["param_groups"] == others["param_groups"]
    assert states["state"].keys() == others["state"].keys()
    for key, state in others["state"].items():
        for name, value in state.items():
            kept = states["state"][key][name]
            assert torch.equal(kept, value) if isinstance(value, torch.Tensor) else kept == value


def _ready(extra: int = 0, **settings: object) -> SGD:
    """Return an optimizer with gradients; of `extra` more elements, if any."""
    params = [*_params(), *([nn.Parameter(torch.zeros(extra))] if extra else [])]
    for param in params:
        param.grad = torch.ones_like(param)
    return SGD(params, lr=0.1, **settings)


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_a_factor_as_a_tensor_gives_the_bits_of_the_number(momentum) -> None:
    values = torch.randn(10_000) * torch.logspace(-40, 30, 10_000)
    ours, theirs = [values.clone()], [values.clone()]
    torch._foreach_mul_(ours, sgd._scalar(momentum))
    torch._foreach_mul_(theirs, momentum)
    assert torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize("extra", [0, MOST])
def test_small_models_alone_are_stepped_in_one_call(extra) -> None:
    assert sgd.step(_ready(extra)) is (extra == 0)


@pytest.mark.parametrize(
    "optimizer",
    [
        partial(_ready, foreach=True),
        partial(_ready, fused=True),
        partial(_ready, momentum=0.9),  # whose buffers the first step makes
        lambda: torch.optim.AdamW(_params()),
        lambda: SGD([nn.Parameter(torch.ones(2, dtype=torch.float64))], lr=torch.tensor(0.1)),
    ],
)
def test_nothing_is_done_where_torchs_step_is_to_be_taken(optimizer) -> None:
    made = optimizer()
    before = [param.clone() for param in made.param_groups[0]["params"]]
    assert not sgd.step(made)
    assert all(map(torch.equal, before, made.param_groups[0]["params"]))


@contextmanager
def _hook_of_all(optimizer: SGD) -> Iterator[None]:
    del optimizer
    handle = register_optimizer_step_post_hook(lambda *_: None)
    yield
    handle.remove()


@contextmanager
def _own_hook(optimizer: SGD) -> Iterator[None]:
    optimizer.register_step_pre_hook(lambda *_: None)
    yield


@contextmanager
def _step_of_another(optimizer: SGD) -> Iterator[None]:
    optimizer.step = lambda: None
    yield


@contextmanager
def _wrapper_of_a_schedulers_wrapper(optimizer: SGD) -> Iterator[None]:
    ConstantLR(optimizer)
    real = optimizer.step
    optimizer.step = wraps(real)(partial(real))  # which copies the mark of the scheduler
    yield


@contextmanager
def _schedulers_wrapper_of_another_step(optimizer: SGD) -> Iterator[None]:
    optimizer.step = MethodType(lambda _: None, optimizer)
    ConstantLR(optimizer)
    yield


@contextmanager
def _step_of_another_for_all(optimizer: SGD) -> Iterator[None]:
    before, type(optimizer).step = type(optimizer).step, lambda *_: None
    yield
    type(optimizer).step = before


@contextmanager
def _profiler(optimizer: SGD) -> Iterator[None]:
    del optimizer
    with torch.profiler.profile():
        yield


@contextmanager
def _mode(optimizer: SGD) -> Iterator[None]:
    del optimizer
    with FlopCounterMode(display=False):
        yield


@pytest.mark.parametrize(
    "listening",
    [
        _hook_of_all,
        _own_hook,
        _step_of_another,
        _wrapper_of_a_schedulers_wrapper,
        _schedulers_wrapper_of_another_step,
        _step_of_another_for_all,
        _profiler,
        _mode,
    ],
)
def test_whoever_listens_to_steps_or_replaces_them_gets_torchs_step(listening) -> None:
    optimizer = _ready()
    with listening(optimizer):
        assert not sgd.step(optimizer)
    if listening in {_hook_of_all, _step_of_another_for_all, _profiler, _mode}:
        assert sgd.step(optimizer)


def test_a_step_that_was_replaced_before_the_import_is_taken(monkeypatch) -> None:
    real = SGD.step
    assert torchs_step_of(SGD) is not None
    monkeypatch.setattr(SGD, "step", wraps(real)(lambda *_: None))
    assert torchs_step_of(SGD) is None
    assert is_replaced(_ready(), None)


def test_an_engine_steps_a_small_model_in_one_call_whatever_steps_its_rate(monkeypatch) -> None:
    answers = []
    real = sgd.step
    monkeypatch.setattr(sgd, "step", lambda optimizer: answers.append(real(optimizer)))
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, scheduler=ConstantLR(optimizer))
    for _ in range(2):
        with engine.autocast():
            loss = engine.model(torch.ones(4, 3)).sum()
        engine.backward(loss)
        engine.step()  # a warning of torch's, of a scheduler before the first step, would fail this
    assert answers == [True, True]


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"weight_decay": 0.1}], ids=str)
def test_a_parameter_that_a_group_has_twice_is_updated_twice_in_turn(settings) -> None:
    def trained(step: Callable[[SGD], object]) -> list[nn.Parameter]:
        first, *others = params = _params()
        optimizer = SGD([first, *others, first], lr=0.1, **settings)
        for param in params:
            param.grad = torch.ones_like(param)
        for _ in range(3):
            step(optimizer)
        return params

    for mine, its in zip(trained(_step), trained(SGD.step), strict=True):
        assert torch.equal(mine, its)


def test_a_momentum_that_is_a_tensor_is_read_in_each_step() -> None:
    def trained(step: Callable[[SGD], object]) -> torch.Tensor:
        optimizer = _ready(momentum=0.9)
        optimizer.param_groups[0]["momentum"] = momentum = torch.tensor(0.9)
        for _ in range(4):
            step(optimizer)
            momentum.mul_(0.5)
        return optimizer.param_groups[0]["params"][0].detach()

    assert torch.equal(trained(_step), trained(SGD.step))


def test_gradients_are_left_as_they_are() -> None:
    optimizer = _ready(momentum=0.9, nesterov=True, weight_decay=0.1)
    params = optimizer.param_groups[0]["params"]
    for _ in range(2):
        _step(optimizer)
    assert all(torch.equal(param.grad, torch.ones_like(param)) for param in params)


def test_sparse_gradients_are_torchs_own_step() -> None:
    def trained(step: Callable[[SGD], object]) -> torch.Tensor:
        torch.manual_seed(0)
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = SGD(table.parameters(), lr=0.1)
        table(torch.tensor([1, 3])).sum().backward()
        step(optimizer)
        return table.weight.detach()

    assert torch.equal(trained(_step), trained(SGD.step))
