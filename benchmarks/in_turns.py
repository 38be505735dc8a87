"""Lets variants of a training step take turns, each in a separate process.

So the kernels and settings of a variant do not affect the others, and a temporary slowdown of the
machine affects all variants. Times are CPU times on one thread. A ratio is the time of a variant's
turn over that of the reference's turn in the same round. The results contain the median over the
rounds and the quartiles. The first step, in which a variant warms up or compiles, is timed
separately.
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
    """Creates a variant in its process, and returns a function that takes a step."""

SLOW = 3.0
"""A variant whose step takes longer than this many reference steps skips most rounds."""


@dataclass(frozen=True)
class Turns:
    """The times of a variant's steps, relative to the reference's in the same rounds.

    Attributes:
        milliseconds: CPU time of a step, the median over rounds.
        ratio: The time relative to the reference's in the same round, the median over rounds.
        low: Lower quartile of the ratios.
        high: Upper quartile of the ratios.
        rounds: The number of rounds.
        first_seconds: CPU time of the first step, including the compilers that it starts.
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
        variants: The variants by name.
        reference: The name of the variant that ratios are relative to.
        steps: The number of steps in a turn; a slow variant takes one.
        rounds: The number of rounds, without the first, which does not count.
        slow_rounds: The number of rounds of a slow variant; see `SLOW`.
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
    """Return the CPU seconds of this process and of the child processes that have ended."""
    used = os.times()
    return time.process_time() + used.children_user + used.children_system
