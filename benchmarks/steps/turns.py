"""Variants that take turns, each in a process of its own, and what their turns come to."""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing
import os
import random
import statistics
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from steps.tasks import MODELS, SETTINGS, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

    from steps.tasks import Model, Setting

    Variant = Callable[[Task], None]
    """Takes steps of a task, each in its turn, until the process ends."""

_M_TRIM_THRESHOLD, _M_MMAP_MAX, _NEVER = -1, -4, 2**31 - 1  # mallopt(3)


class Turns:
    """A variant's end of the pipe: its loop calls `begin` before and `end` after each step."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._left = self._warm = 0
        self._count, self._seconds = 0, 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Wait for the variant's turn, if it is not its turn now; then a step begins."""
        if self._left == 0:
            order = self._conn.recv()
            if order is None:
                # Straight out of whatever loop: nothing that a tool does at its end matters here.
                os._exit(0)
            self._warm, self._count = order
            self._left, self._seconds = self._warm + self._count, 0.0
        self._began = time.process_time()

    def end(self) -> None:
        """End a step."""
        took = time.process_time() - self._began
        if self._left <= self._count:
            self._seconds += took
        self._left -= 1
        if self._left == 0:
            self._conn.send(self._seconds / self._count)


@dataclass(frozen=True)
class Row:
    """A variant's steps beside the raw loop's of the same rounds.

    Attributes:
        microseconds: CPU time of a step, the median over rounds.
        ratio: To the raw loop's of the same round, the median over rounds.
        low: Lower quartile of the ratios.
        high: Upper quartile.
        rounds: How many there were.
        equal_work: For the engine, which checks its gradients, the same ratio to the raw loop that
            checks them, too; None for the others.
    """

    model: str
    setting: str
    variant: str
    microseconds: float
    ratio: float
    low: float
    high: float
    rounds: int
    equal_work: float | None = None


def measure(
    model: str, setting: str, variants: Mapping[str, Variant], starts: int, rounds: int
) -> list[Row]:
    """Let variants take turns.

    Args:
        model: Name of the model.
        setting: Name of the setting.
        variants: By name; the raw loop is among them.
        starts: How often all of them start anew.
        rounds: Rounds of each start.
    """
    steps, names = MODELS[model].steps, list(variants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(starts):
        ends = {name: _start(variants[name], model, setting) for name in names}
        for number in range(rounds + 1):
            order = names[number % len(names) :] + names[: number % len(names)]
            for name in order:
                _, conn = ends[name]
                conn.send((max(1, steps // 10), steps))
                taken = conn.recv()
                if number:  # the first round warms up
                    seconds[name].append(taken)
        for process, conn in ends.values():
            conn.send(None)
            process.join()
    rows = {name: _row(model, setting, name, seconds[name], seconds["raw"]) for name in names}
    if {"engine", "raw, checked"} <= rows.keys():
        ratios = _ratios(seconds["engine"], seconds["raw, checked"])
        equal_work = round(statistics.median(ratios), 3)
        rows["engine"] = replace(rows["engine"], equal_work=equal_work)
    return list(rows.values())


def _ratios(seconds: list[float], others: list[float]) -> list[float]:
    return [mine / its for mine, its in zip(seconds, others, strict=True)]


def _start(variant: Variant, model: str, setting: str) -> tuple[Any, Connection]:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(variant, MODELS[model], SETTINGS[setting], there), daemon=True
    )
    process.start()
    there.close()
    return process, here


def _run(variant: Variant, model: Model, setting: Setting, conn: Connection) -> None:
    warnings.simplefilter("ignore")
    _keep_freed_memory()
    shifted = _shift_addresses()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        variant(Task(model, setting, Turns(conn)))
    del shifted


def _keep_freed_memory() -> None:
    """Let malloc keep what is freed, so that no step pays for the pages of another.

    Otherwise glibc returns freed memory to the system, or not, by the order of the allocations
    before: of two processes that do the same, one may be 15 % slower, in every one of its steps.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)


def _shift_addresses() -> list[bytearray]:
    """Return blocks of random sizes, so that a variant's tensors lie elsewhere in each start.

    A forked process begins with the memory of its parent: without them, each start of a variant
    would place its tensors as the last one did, and measure the same favourable or bad luck.
    """
    chance = random.Random()  # noqa: S311  (addresses, no secrets)
    blocks = [bytearray(chance.randrange(1, 1 << 18)) for _ in range(64)]
    return chance.sample(blocks, 32)  # the others leave holes


def _row(model: str, setting: str, name: str, seconds: list[float], raws: list[float]) -> Row:
    ratios = _ratios(seconds, raws)
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Row(
        model,
        setting,
        name,
        round(1e6 * statistics.median(seconds), 1),
        round(middle, 3),
        round(low, 3),
        round(high, 3),
        len(ratios),
    )
