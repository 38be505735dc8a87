"""What is kept once, whole, or not at all."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from halfstep.mechanisms.activations.store import Draws, Kept, Saved, Store, Whole

from .nets import ENOUGH, saved, using


def test_a_tensor_that_several_operators_save_is_kept_once_views_included():
    values = torch.randn(64, 128, requires_grad=True)
    weights = [torch.randn(16, 128, requires_grad=True) for _ in range(3)]
    with using("act4"):
        shared = values * 2.0
        results = [
            functional.linear(shared, weights[0]),
            functional.linear(shared.view(8, 8, 128), weights[1]),
            shared.t().t() @ weights[2].t(),
        ]
        (kept,) = saved()
    assert kept.packed.bits == 4
    sum(result.sum() for result in results).backward()
    assert torch.equal(weights[0].grad, weights[2].grad)
    assert torch.allclose(weights[0].grad, weights[1].grad, rtol=1e-4, atol=1e-4)


def test_a_tensor_that_one_operator_needs_whole_is_kept_whole_alone():
    values = torch.randn(64, 128, requires_grad=True)
    weight = torch.randn(16, 128, requires_grad=True)
    with using("act2"):
        shared = (values * 2.0).exp()
        result = functional.linear(shared, weight)
        (kept,) = saved()
        assert kept.packed is None
        before = values * 3.0
        other = functional.linear(before, weight)
        packed = next(each for each in saved() if each is not kept)
        assert packed.packed is not None
        power = before.pow(3)
        assert packed.packed is None
    (result.sum() + other.sum() + power.sum()).backward()
    exact = values.detach()
    expected = (exact * 2).exp().sum(0) + (exact * 3).sum(0)
    assert torch.allclose(weight.grad, expected.expand(16, -1), rtol=1e-4)


def test_memory_that_is_used_again_is_not_taken_for_what_lay_there_before():
    weight = torch.randn(16, 128, requires_grad=True)
    with using("act8"):
        for _ in range(20):
            values = torch.randn(64, 128)
            result = functional.linear(values * 1.0, weight)
            weight.grad = None
            result.sum().backward()
            assert torch.allclose(weight.grad[0], values.sum(0), atol=0.5)


def test_what_is_changed_in_place_is_not_taken_for_what_it_was():
    weight = torch.randn(16, 128, requires_grad=True)
    values = torch.randn(64, 128)
    with using("act8"):
        shared = values * 1.0
        one = functional.linear(shared, weight)
        shared.mul_(-10)
        two = functional.linear(shared, weight)
    one.sum().backward(retain_graph=True)
    assert torch.allclose(weight.grad[0], values.sum(0), atol=0.5)
    weight.grad = None
    two.sum().backward()
    assert torch.allclose(weight.grad[0], -10 * values.sum(0), atol=5)


def test_a_whole_tensor_that_is_changed_in_place_is_an_error_as_without():
    values = torch.randn(ENOUGH, requires_grad=True)
    with using("act4"):
        result = (values * 1.0).exp()
        result.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_parameters_casts_of_them_small_and_integer_tensors_stay_as_they_are():
    # The weight of the second layer is saved, in bf16, since a gradient goes on to the first.
    layers = (nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.Linear(128, 4))
    model = nn.Sequential(*layers)
    index = torch.randint(0, 16, (ENOUGH,))
    with using("act2"), torch.autocast("cpu", dtype=torch.bfloat16):
        result = model(torch.randn(64, 128)).sum() + model[0].weight.flatten()[index].sum()
        packed = [kept for kept in saved() if kept.packed is not None]
        assert sorted(kept.packed.elements for kept in packed) == [64 * 128] * 3
    result.backward()


def test_frozen_parameters_stay_as_they_are():
    model = nn.Linear(128, 128).requires_grad_(requires_grad=False)
    with using("act2"):
        result = model(torch.randn(64, 128, requires_grad=True) * 1.0)
        assert not any(kept.packed for kept in saved())
    result.sum().backward()


def test_a_tensor_that_another_thread_needs_whole_meanwhile_is_restored():
    """Between two looks at it, `packed` may become None."""
    values = torch.randn(ENOUGH)

    class Demoted(Kept):
        looks = 0

        @property
        def packed(self) -> Any:
            self.looks += 1
            return packed if self.looks == 1 else None

        @packed.setter
        def packed(self, given: Any) -> None:
            pass

    store = Store(256, Draws(1))
    packed = store.pack(values, 8)
    kept = Demoted(packed, Whole(values, values._version), None)
    with torch.no_grad():
        back = store.restore(Saved(kept, values.size(), values.stride()))
    assert torch.equal(back, packed.unpack())


def test_threads_never_draw_the_same_numbers():
    draws = Draws(1)
    found: list[int] = []

    def take() -> None:
        found.extend(draws.take(3, torch.device("cpu")).counter for _ in range(200))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(0, 3 * 800, 3))
