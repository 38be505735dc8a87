"""Loops that know their last batch: alone, side by side, inside each other, and left early."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
import torch
from torch.optim import SGD

from engine.tiny import mlp
from halfstep.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterator

INPUTS = torch.ones(4, 6)


@pytest.fixture
def engine() -> Iterator[Engine]:
    model = mlp()
    with Engine(model, SGD(model.parameters(), lr=1.0), accumulate=2) as made:
        yield made


def closes(engine: Engine) -> bool:
    """Take a micro-step, and tell whether it closed the window."""
    engine.backward(engine.model(INPUTS).mean())
    return engine.step().closed


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((3, 5), [False, True, True]),
        ((5, 3), [False, True, True]),
        ((3, 3), [False, True, True]),
        ((1, 3), [True]),
        ((3, 1), [True]),
        ((4, 3, 9), [False, True, True]),
    ],
)
def test_loops_side_by_side_end_with_the_shortest(engine, sizes, expected) -> None:
    loops = [engine.batches(range(size)) for size in sizes]
    assert [closes(engine) for _ in zip(*loops, strict=False)] == expected
    del loops
    assert not closes(engine)


def test_a_batch_drawn_by_hand_beside_a_loop_ends_nothing(engine) -> None:
    others = engine.batches(range(100))
    closed = []
    for _ in engine.batches(range(3)):
        next(others)
        closed.append(closes(engine))
    assert closed == [False, True, True]


def test_the_last_batch_of_an_outer_loop_does_not_close_the_windows_of_an_inner_one(engine) -> None:
    closed = [[closes(engine) for _ in engine.batches(range(5))] for _ in engine.batches(range(2))]
    assert closed == [[False, True, False, True, True]] * 2


def test_an_outer_loop_closes_after_its_inner_loops_have_ended(engine) -> None:
    closed = []
    for _ in engine.batches(range(2)):
        for _ in engine.batches(range(2)):
            closes(engine)
        closed.append(closes(engine))
    assert closed == [False, True]


def test_a_loop_that_ended_closes_nothing_more(engine) -> None:
    loop = engine.batches(range(1))
    assert [closes(engine) for _ in loop] == [True]
    assert not closes(engine)
    assert next(loop, None) is None


def test_a_loop_that_was_dropped_at_its_last_batch_closes_nothing_more(engine) -> None:
    loop = engine.batches(range(1))
    next(loop)
    del loop
    gc.collect()
    assert not closes(engine)


def test_a_loader_that_fails_ends_its_loop(engine) -> None:
    def loader() -> Iterator[int]:
        yield 1
        raise OSError("a disk")

    loop = engine.batches(loader())
    with pytest.raises(OSError, match="a disk"):
        next(loop)
    assert list(loop) == []
    assert not closes(engine)


def test_a_loader_is_asked_for_nothing_before_its_first_batch_is_wanted(engine) -> None:
    asked = []

    def loader() -> Iterator[int]:
        for number in range(3):
            asked.append(number)
            yield number

    loop = engine.batches(loader())
    assert asked == []
    assert next(loop) == 0
    assert asked == [0, 1]
