"""Who observes an optimizer's steps or has replaced them, so that halfstep leaves them to torch."""

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
from halfstep.doctor import Watch
from halfstep.optim.watched import has_dispatch_mode, has_hooks, is_replaced, torchs_step_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def optimizer() -> SGD:
    return SGD([nn.Parameter(torch.ones(3))], lr=0.1)


def _by_another(optimizer: SGD) -> None:
    optimizer.step = lambda: None


def _around_a_schedulers_wrapper(optimizer: SGD) -> None:
    ConstantLR(optimizer)
    real = optimizer.step
    optimizer.step = wraps(real)(partial(real))  # which copies the mark of the scheduler


def _before_a_scheduler(optimizer: SGD) -> None:
    optimizer.step = MethodType(lambda _: None, optimizer)
    ConstantLR(optimizer)


@pytest.mark.parametrize(
    "replace", [_by_another, _around_a_schedulers_wrapper, _before_a_scheduler]
)
def test_a_step_that_was_replaced_is_found(optimizer, replace) -> None:
    assert not is_replaced(optimizer, torchs_step_of(SGD))
    replace(optimizer)
    assert is_replaced(optimizer, torchs_step_of(SGD))


def test_the_wrapper_of_a_scheduler_is_no_replacement(optimizer) -> None:
    ConstantLR(optimizer)
    assert not is_replaced(optimizer, torchs_step_of(SGD))


def test_a_step_that_was_replaced_on_the_class_is_found(optimizer, monkeypatch) -> None:
    real = torchs_step_of(SGD)
    assert real is not None
    monkeypatch.setattr(SGD, "step", wraps(SGD.step)(lambda *_: None))
    assert torchs_step_of(SGD) is None
    assert is_replaced(optimizer, real)
    assert is_replaced(optimizer, None)


@contextmanager
def _hook_of_all(optimizer: SGD) -> Iterator[None]:
    del optimizer
    handle = register_optimizer_step_post_hook(lambda *_: None)
    yield
    handle.remove()


@contextmanager
def _own_hook(optimizer: SGD) -> Iterator[None]:
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    yield
    handle.remove()


@pytest.mark.parametrize("hooked", [_hook_of_all, _own_hook])
def test_hooks_of_others_are_found_and_those_of_an_engine_and_doctor_are_not(
    optimizer, hooked
) -> None:
    model = nn.Linear(3, 2)
    with Engine(model, SGD(model.parameters(), lr=0.1), recipe="o2") as engine:
        assert not has_hooks(engine.optimizer)
        with Watch():
            assert not has_hooks(engine.optimizer)
        with hooked(engine.optimizer):
            assert has_hooks(engine.optimizer)
        assert not has_hooks(engine.optimizer)


def test_a_dispatch_mode_is_found() -> None:
    assert not has_dispatch_mode()
    with FlopCounterMode(display=False):
        assert has_dispatch_mode()
