"""Memory that is allocated and not filled leaves no trace in the evidence."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from doctor.loops import Around, batches, half_autocast
from halfstep.doctor import Evidence, Watch

ALLOCATES = {
    "empty": lambda like: torch.empty(like.shape, dtype=like.dtype),
    "empty_like": torch.empty_like,
    "empty_permuted": lambda like: torch.empty_permuted(like.shape, (1, 0), dtype=like.dtype),
    "empty_strided": lambda like: torch.empty_strided(like.shape, like.stride(), dtype=like.dtype),
    "new_empty": lambda like: like.new_empty(like.shape),
    "new_empty_strided": lambda like: like.new_empty_strided(like.shape, like.stride()),
    "resize_": lambda like: like.new_zeros(1).resize_(like.shape),
    "resize_as_": lambda like: like.new_zeros(1).resize_as_(like),
    "a copy": lambda like: torch.empty_like(like, dtype=torch.float32).to(like.dtype).clone(),
}


class Used(TorchDispatchMode):
    """Allocated memory holds what somebody has left there.

    Args:
        number: That.
        wide: What it is in fp32.
    """

    def __init__(self, number: float, wide: float | None = None) -> None:
        super().__init__()
        self.number = number
        self.wide = number if wide is None else wide

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__.startswith(("empty", "new_empty", "resize_")):
            result.fill_(self.wide if result.dtype == torch.float32 else self.number)
        return result


def filled(tensor, like):
    """Fill a tensor in each of the ways in which programs do, the same values at the end."""
    half = len(like) // 2
    tensor[:half] = like[:half]
    tensor[half:].copy_(like[half:])
    drawn = torch.zeros_like(like)
    for fill in (torch.Tensor.normal_, torch.Tensor.bernoulli_, torch.Tensor.exponential_):
        drawn = drawn + fill(tensor.new_empty(tensor.shape)).clamp(max=8)
    taken = torch.empty_like(like)
    rows = torch.arange(len(like))
    taken[rows % 2 == 0] = like[rows % 2 == 0]
    taken.index_copy_(0, rows[1::2], like[1::2])
    doubled = torch.mul(like, 2, out=torch.empty_like(like))
    return functional.dropout(tensor, 0.5) + drawn * 1e-3 + taken + doubled


def evidence_of(allocate, number: float) -> Evidence:
    def inner(features):
        with torch.no_grad():
            exploded = (features.float() * 1000).exp()  # inf, of which division makes 0
            like = features.half() + allocate(1 / (1 + exploded)).fill_(0).half()
            torch.log(like.new_zeros(like.shape), out=torch.empty_like(like))
            noise = filled(allocate(like), like)
        return features + noise

    model = Around(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    with Used(number), Watch() as watch:
        for images, labels in batches(2):
            optimizer.zero_grad()
            with half_autocast():
                loss = functional.cross_entropy(model(images).float(), labels)
            loss.backward()
            optimizer.step()
    assert not watch.troubles
    return watch.close()


@pytest.mark.parametrize("allocate", ALLOCATES.values(), ids=ALLOCATES)
def test_the_evidence_is_the_same_whatever_unfilled_memory_holds(allocate) -> None:
    expected = evidence_of(allocate, 1.0)
    signals = json.loads(expected.to_json())["signals"]
    assert signals == sorted(signals)
    assert expected.precision.bits_to_overflow < 16
    assert {each.op for each in expected.births} == {"aten.exp", "aten.log"}
    for number in (60000.0, float("inf")):
        assert evidence_of(allocate, number).to_json() == expected.to_json()


@pytest.mark.parametrize("name", sorted(set(ALLOCATES) - {"a copy"}))
def test_the_loop_s_own_unfilled_memory_has_not_overflowed(name) -> None:
    like = torch.ones(3, 4, dtype=torch.float16)
    with Used(float("inf"), wide=1.0), Watch() as watch, torch.no_grad():
        ALLOCATES[name](like)
    assert watch.close().overflows == ()


DRAWS = {
    "cauchy_": lambda memory: memory.cauchy_(0, 1e9),
    "copy_": lambda memory: memory.copy_(torch.full(memory.shape, 1e9)),
    "exponential_": lambda memory: memory.exponential_(1e-9),
    "geometric_": lambda memory: memory.geometric_(1e-9),
    "log_normal_": lambda memory: memory.log_normal_(90, 1),
    "normal_": lambda memory: memory.normal_(0, 1e9),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_fills_memory_with_inf_gives_birth_and_reads_none_of_it(name) -> None:
    def inner(features):
        return features + DRAWS[name](torch.empty_like(features, dtype=torch.float16))

    model = Around(inner)
    with Used(7.0), Watch() as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for images, labels in batches(1):
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    birth = next(each for each in watch.close().births if each.culprit)
    assert birth.op == f"aten.{name.rstrip('_')}"
    assert all(each.largest == 1e9 for each in birth.inputs)


FILLS = {
    "bernoulli_": (lambda memory: memory.bernoulli_(1.0), 1),
    "fill_": (lambda memory: memory.fill_(60000), 60000),
    "random_": (lambda memory: memory.random_(2000, 2001), 2000),
    "uniform_": (lambda memory: memory.uniform_(60000, 60000), 60000),
}


@pytest.mark.parametrize("name", FILLS)
def test_what_fills_memory_has_headroom_of_its_own(name) -> None:
    fill, largest = FILLS[name]

    def inner(features):
        fill(torch.empty_like(features, dtype=torch.float16))
        return features

    model = Around(inner)
    with Used(65504.0), Watch() as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for images, labels in batches(1):
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    assert watch.close().precision.bits_to_overflow == math.log2(65504 / largest)


def test_what_only_reads_a_shape_does_not_swallow_an_infinity() -> None:
    def inner(features):
        exploded = (features.detach() * 1000).exp()
        made = features + 0 * (torch.zeros_like(exploded) + exploded.new_ones(exploded.shape))
        exploded.zero_()
        return made

    model = Around(inner)
    with Watch() as watch:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for images, labels in batches(2):
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    (birth,) = watch.close().births
    assert (birth.op, birth.consumers, birth.swallowed) == ("aten.exp", (), ())
