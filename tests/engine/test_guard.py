"""Who may train a model that a recipe has changed, and what a dropped engine leaves behind."""

from __future__ import annotations

import copy
import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch.optim import SGD, Adagrad
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook

from halfstep.engine import Engine

from .tiny import differences, mlp

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer

INPUTS = torch.linspace(-1, 1, 12).reshape(2, 6)
CHANGING = ["half", "half-bn32", "o2", "o3", "bf16-true", "bf16-sr", "bf16-kahan"]


def take_step(engine: Engine) -> None:
    with engine.autocast():
        loss = engine.model(INPUTS).float().square().mean()
    engine.backward(loss)
    assert engine.step().stepped


def trained(model: nn.Module, optimizer: Optimizer, recipe: str) -> Engine:
    engine = Engine(model, optimizer, recipe=recipe)
    take_step(engine)
    return engine


def dropped_by_del(model: nn.Module, optimizer: Optimizer, recipe: str) -> None:
    engine = trained(model, optimizer, recipe)
    del engine


def dropped_by_return(model: nn.Module, optimizer: Optimizer, recipe: str) -> None:
    trained(model, optimizer, recipe)


def dropped_in_a_cycle(model: nn.Module, optimizer: Optimizer, recipe: str) -> None:
    engine = trained(model, optimizer, recipe)
    engine.itself = engine  # type: ignore[attr-defined]  # as a trainer object may


def dropped_by_an_error(model: nn.Module, optimizer: Optimizer, recipe: str) -> None:
    def fails() -> None:
        engine = trained(model, optimizer, recipe)
        raise KeyError(engine)

    with pytest.raises(KeyError):
        fails()


def test_an_engine_may_be_collected_while_another_optimizer_steps() -> None:
    model, other = mlp(norm=True), mlp(norm=True)
    dropped_in_a_cycle(model, SGD(model.parameters(), lr=0.1), "bf16-kahan")
    optimizer = SGD(other.parameters(), lr=0.1)
    handle = register_optimizer_step_pre_hook(lambda *_: gc.collect() and None)
    last = register_optimizer_step_pre_hook(lambda *_: None)
    try:
        optimizer.step()
    finally:
        handle.remove()
        last.remove()


@pytest.mark.parametrize("recipe", CHANGING)
@pytest.mark.parametrize(
    "drop", [dropped_by_del, dropped_by_return, dropped_in_a_cycle, dropped_by_an_error]
)
def test_a_dropped_engine_leaves_what_a_closed_one_does(
    recipe: str, drop: Callable[..., None]
) -> None:
    closed = mlp(norm=True)
    closed_optimizer = SGD(closed.parameters(), lr=0.1, momentum=0.9)
    trained(closed, closed_optimizer, recipe).close()
    model = mlp(norm=True)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    drop(model, optimizer, recipe)
    # No collection where none is needed: a second engine asks for it by itself.
    for net, its_optimizer in ((closed, closed_optimizer), (model, optimizer)):
        with Engine(net, its_optimizer, recipe=recipe) as engine:
            take_step(engine)
    assert not differences(model.state_dict(), closed.state_dict())
    assert not differences(optimizer.state_dict(), closed_optimizer.state_dict())
    for param, start in zip(model.parameters(), mlp(norm=True).parameters(), strict=True):
        assert param.dtype == torch.float32
        # A bias before a batch norm has no gradient but rounding errors.
        assert param.shape == (8,) or not torch.equal(param, start)


@pytest.mark.parametrize("recipe", CHANGING)
def test_plain_torch_goes_on_with_the_model_of_a_dropped_engine(recipe: str) -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    dropped_by_return(model, optimizer, recipe)
    twin = mlp()
    twin.load_state_dict(model.state_dict())
    other = SGD(twin.parameters(), lr=0.1)
    for net, its_optimizer in ((model, optimizer), (twin, other)):
        net(INPUTS).square().mean().backward()
        its_optimizer.step()
    assert not differences(model.state_dict(), twin.state_dict())


def test_an_engine_dropped_in_inference_mode_leaves_a_model_that_trains() -> None:
    model = mlp()
    engine = trained(model, SGD(model.parameters(), lr=0.1), "o2")
    with torch.inference_mode():
        del engine
    model(INPUTS).sum().backward()
    assert all(param.grad is not None for param in model.parameters())


def test_a_model_that_holds_its_engine_is_freed_with_it() -> None:
    model = mlp()
    freed = []
    model.engine = trained(model, SGD(model.parameters(), lr=0.1), "o2")
    model.probe = Probe(freed)
    del model
    gc.collect()
    assert freed == [True]


class Probe:
    def __init__(self, freed: list[bool]) -> None:
        self.freed = freed

    def __del__(self) -> None:
        self.freed.append(True)


def test_a_dropped_engine_settles_its_last_step() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = StepLR(optimizer, 1)
    engine = Engine(model, optimizer, scheduler=scheduler)
    take_step(engine)
    del engine
    assert scheduler.last_epoch == 1


@pytest.mark.parametrize(
    ("first", "second"), [("o2", "o2"), ("half", "fp16"), ("fp16", "bf16-sr"), ("fp8", "fp8")]
)
def test_a_model_that_an_open_engine_has_changed_is_refused(first: str, second: str) -> None:
    model = mlp()
    engine = trained(model, SGD(model.parameters(), lr=0.1), first)
    before = copy.deepcopy(model.state_dict())
    formats = [param.dtype for param in model.parameters()]
    with pytest.raises(ValueError, match=r"model belongs to another engine.* call close\(\)"):
        Engine(model, Adagrad(model.parameters()), recipe=second)
    assert [param.dtype for param in model.parameters()] == formats
    assert not differences(model.state_dict(), before)
    take_step(engine)
    engine.close()
    trained(model, SGD(model.parameters(), lr=0.1), second).close()


def test_parts_of_a_model_may_have_engines_of_their_own() -> None:
    model = mlp()
    engines = [Engine(model[i], SGD(model[i].parameters(), lr=0.1), recipe="o2") for i in (0, 2)]
    with pytest.raises(ValueError, match="model belongs to another engine"):
        Engine(model, SGD(model.parameters(), lr=0.1), recipe="o2")
    for engine in engines:
        engine.close()


def test_an_engine_that_an_exception_keeps_alive_is_refused_or_closed() -> None:
    model = mlp()

    def fails() -> None:
        engine = trained(model, SGD(model.parameters(), lr=0.1), "o2")
        raise KeyError(engine)

    with pytest.raises(KeyError) as caught:
        fails()
    with pytest.raises(ValueError, match="model belongs to another engine"):
        Engine(model, SGD(model.parameters(), lr=0.1), recipe="o2")
    del caught
    trained(model, SGD(model.parameters(), lr=0.1), "o2").close()


@pytest.mark.parametrize("recipe", CHANGING)
def test_a_plain_optimizer_may_not_step_what_an_open_engine_has_changed(recipe: str) -> None:
    model, other = mlp(), mlp()
    plain = SGD(model.parameters(), lr=0.1)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe=recipe) as engine:
        take_step(engine)
        with pytest.raises(RuntimeError, match=r"SGD\.step\(\) would update parameters.*close\(\)"):
            plain.step()
        SGD(other.parameters(), lr=0.1).step()
    model(INPUTS).sum().backward()
    plain.step()


def test_an_optimizer_over_master_weights_is_refused() -> None:
    model = mlp(norm=True)
    engine = Engine(model, SGD(model.parameters(), lr=0.1), recipe="o2")
    stale = SGD(engine.optimizer.param_groups[0]["params"], lr=0.1)
    engine.close()
    with pytest.raises(ValueError, match="optimizer 0 holds master weights of an engine before"):
        Engine(model, stale, recipe="o2")
