"""Variants of a training step that take turns, each in a process of its own.

So no variant's kernels or settings reach another, and what slows the machine for a while slows all
of them. Times are of the processor on one thread. A ratio is of a variant's turn to the reference's
of the same round; given are its median over the rounds and its quartiles. The first turn, in which
a variant warms up or compiles, is timed apart.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    Start = Callable[[], Callable[[], None]]
    """Makes a variant, in its own process, and returns its step."""

SLOW = 3.0
"""Times the reference's step, beyond which a variant sits most rounds out."""


@dataclass(frozen=True)
class Turns:
    """A variant's steps beside the reference's of the same rounds.

    Attributes:
        milliseconds: Of a step, the median over rounds.
        ratio: To the reference's of the same round, the median over rounds.
        low: Lower quartile of the ratios.
        high: Upper quartile.
        rounds: How many there were.
        first_seconds: Of the first step by the clock of the processor, compilers started by it
            included.
    """

    milliseconds: float
    ratio: float
    low: float
    high: float
    rounds: int
    first_seconds: float


def measure(
    variants: Mapping[str, Start], reference: str, *, steps: int, rounds: int, slow_rounds: int = 2
) -> dict[str, Turns]:
    """Let variants take turns.

    Args:
        variants: By name.
        reference: The name of the one that ratios are to.
        steps: In a turn; one in a slow variant's.
        rounds: Without the first.
        slow_rounds: Of variants that take `SLOW` times the reference's step or more.
    """
    names = [reference, *(name for name in variants if name != reference)]
    ends = {name: _started(variants[name]) for name in names}
    first = {name: _turn(ends[name][1], 1, warm=0) for name in names}
    seconds: dict[str, dict[int, float]] = {name: {} for name in names}
    slow: set[str] = set()
    usual = 0.0
    for number in range(rounds + 1):
        for name in names:
            if name in slow and number > slow_rounds:
                continue
            is_slow = name in slow
            taken = _turn(ends[name][1], 1 if is_slow else steps, warm=0 if is_slow else 1)
            if number:
                seconds[name][number] = taken
            elif name == reference:
                usual = taken
            elif taken > SLOW * usual:
                slow.add(name)
    for process, conn in ends.values():
        conn.send(None)
        process.join()
    return {name: _turns(seconds[name], seconds[reference], first[name]) for name in names}


def _turns(mine: Mapping[int, float], its: Mapping[int, float], first: float) -> Turns:
    ratios = [taken / its[number] for number, taken in mine.items() if number in its]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Turns(
        round(1e3 * statistics.median(mine.values()), 3),
        round(middle, 3),
        round(low, 3),
        round(high, 3),
        len(ratios),
        round(first, 2),
    )


def _started(start: Start) -> tuple[Any, Connection]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(start, there))
    process.start()
    there.close()
    return process, here


def _turn(conn: Connection, steps: int, *, warm: int) -> float:
    conn.send((steps, warm))
    taken: float = conn.recv()
    return taken


def _serve(start: Start, conn: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        step = start()
        while (order := conn.recv()) is not None:
            steps, warm = order
            for _ in range(warm):
                step()
            began = _clock()
            for _ in range(steps):
                step()
            conn.send((_clock() - began) / steps)
        os._exit(0)


def _clock() -> float:
    """Seconds of the processor, by this process and those that it has waited for."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system
