"""Lets variants of a step take turns on one device, and returns a row of figures for each.

A turn is a few steps, between two waits for the device. In each round every variant has one, in an
order that is reversed from round to round, so that neither a slow spell of the machine nor what the
last variant left behind favours one of them. A ratio compares two turns of the same round.

On a GPU, CUDA events time each step, and the steps before a turn, which are not timed by them, give
the time that the host takes to launch a step on an idle device. On a CPU, a clock times the steps.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from halfstep.errors import in_a_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from gpu_items import At

    Step = Callable[[], object]
    Row = dict[str, Any]

ROUNDS = 12
TURN = 0.2
"""Seconds of a turn; a turn has at least one step."""
MOST_STEPS = 100
"""Most steps of a turn."""
WARM_STEPS, WARM_SECONDS = 3, 0.7
"""Warm-up of a variant: it ends when both have passed."""
RESERVE = 4.0
"""Seconds before the deadline in which no round begins."""
TO_START, COMPILES = 12.0, 30.0
"""Seconds before the deadline in which no variant starts; those of one that compiles."""


@dataclass(frozen=True)
class Variant:
    """A way to take a step.

    Attributes:
        name: Its name in the group.
        start: Creates it, and returns a function that takes a step. What must be closed after the
            last round goes into the stack.
        peer: The variant that it is compared with; "" for none.
        around: A context of each of its turns.
        lead: Steps before a turn that are not timed.
    """

    name: str
    start: Callable[[ExitStack], Step]
    peer: str = ""
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    lead: int = 1


@dataclass
class _Running:
    """A variant that has started, and its figures of each round.

    Attributes:
        step: Takes a step.
        steps: The number of steps in a turn.
        first_seconds: Seconds of the first step, in which it compiles and allocates.
        peak: Peak of the bytes that the variant allocates, with its model; None on a CPU.
        turns: Mean milliseconds of a step, by round.
        host: Milliseconds in which the host launches a step, by round.
        slowest: Milliseconds of the slowest step.
    """

    step: Step
    steps: int
    first_seconds: float
    peak: int | None
    turns: dict[int, float] = field(default_factory=dict)
    host: dict[int, float] = field(default_factory=dict)
    slowest: float = 0.0


def alternate(
    variants: Sequence[Variant],
    at: At,
    *,
    to_start: float = TO_START,
    inspect: Callable[[Step], Row] | None = None,
) -> list[Row]:
    """Let variants take turns, and return a row for each.

    A variant that raises has a row with the key `refused`, and the others continue. Rounds end
    early if the time of the item does.

    Args:
        variants: The variants, in the order in which they start.
        at: The device, and whether sizes are toys.
        to_start: Seconds that must be left for a variant to start.
        inspect: Returns further figures of a variant, after the last round.
    """
    running: dict[str, _Running] = {}
    refused: dict[str, str] = {}
    further: dict[str, Row] = {}
    with ExitStack() as opened:
        for each in variants:
            if at.left() < to_start:
                refused[each.name] = "no time was left for it"
                continue
            with _refusing(each.name, refused):
                running[each.name] = _started(each, at, opened)
        for number in range(2 if at.toy else ROUNDS):
            if at.left() < RESERVE:
                break
            for each in variants[:: -1 if number % 2 else 1]:
                if each.name not in refused:
                    with _refusing(each.name, refused):
                        _turn(each, running[each.name], number, at)
        for name, one in running.items():
            if inspect is not None and name not in refused and at.left() > RESERVE:
                further[name] = inspect(one.step)
        rows = [_row(each, running, refused) | further.get(each.name, {}) for each in variants]
        running.clear()
    free()
    return rows


@contextmanager
def _refusing(name: str, refused: dict[str, str]) -> Iterator[None]:
    """Turn an exception of a variant into a reason in `refused`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever a variant raises, the others count
        refused[name] = in_a_line(error)


def _started(variant: Variant, at: At, opened: ExitStack) -> _Running:
    """Start a variant and warm it up; measure its first step and its peak."""
    before = torch.cuda.memory_allocated() if at.on_gpu else 0
    began = time.perf_counter()
    step = variant.start(opened)
    step()
    wait(at)
    first = time.perf_counter() - began
    taken, began = [], time.perf_counter()
    while not at.toy and (len(taken) < WARM_STEPS or time.perf_counter() - began < WARM_SECONDS):
        taken.append(milliseconds(step, 1, at)[0])
    usual = min(taken[1:], default=1e3 * TURN)
    steps = max(1, min(MOST_STEPS, math.ceil(1e3 * TURN / usual)))
    return _Running(step, steps, first, peak(step, before, at))


def peak(step: Step, before: int, at: At) -> int | None:
    """Return the peak of bytes in a step above `before`, those of others; None on a CPU."""
    if not at.on_gpu:
        return None
    torch.cuda.reset_peak_memory_stats()
    milliseconds(step, 1, at)
    return torch.cuda.max_memory_allocated() - before


def _turn(variant: Variant, one: _Running, number: int, at: At) -> None:
    """Take a turn."""
    with variant.around():
        for _ in range(1 if at.toy else variant.lead):
            wait(at)
            began = time.perf_counter()
            one.step()
            host = 1e3 * (time.perf_counter() - began)
        taken = milliseconds(one.step, one.steps, at)
    one.turns[number], one.host[number] = statistics.fmean(taken), host
    one.slowest = max(one.slowest, *taken)


def milliseconds(step: Step, steps: int, at: At) -> list[float]:
    """Take steps, and return the milliseconds of each."""
    wait(at)
    if not at.on_gpu:
        ends = [1e3 * time.perf_counter()]
        for _ in range(steps):
            step()
            ends.append(1e3 * time.perf_counter())
        return [end - begin for begin, end in pairwise(ends)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    wait(at)
    return [begin.elapsed_time(end) for begin, end in pairwise(events)]


def _row(variant: Variant, running: dict[str, _Running], refused: dict[str, str]) -> Row:
    """Return the figures of a variant, or why there are none."""
    row: Row = {"variant": variant.name}
    if variant.name in refused or not running[variant.name].turns:
        return row | {"refused": refused.get(variant.name, "no time was left for its turns")}
    one = running[variant.name]
    row |= {
        "ms": spread(one.turns.values()),
        "slowest_ms": rounded(one.slowest),
        "host_ms": spread(one.host.values()),
        "steps_a_turn": one.steps,
        "first_seconds": rounded(one.first_seconds),
        "peak_MiB": None if one.peak is None else round(one.peak / 2**20, 1),
    }
    peer = running.get(variant.peer)
    if peer is not None:
        ratios = [
            ms / peer.turns[number] for number, ms in one.turns.items() if number in peer.turns
        ]
        row |= {"peer": variant.peer, "ratio": spread(ratios)} if ratios else {}
    return row


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return the mean, the median and the quartiles of at least one value, and their number."""
    found = [*values]
    several = found * 2 if len(found) == 1 else found
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    figures = {"mean": statistics.fmean(found), "median": median, "low": low, "high": high}
    return {name: rounded(value) for name, value in figures.items()} | {"n": len(found)}


def rounded(value: float) -> float:
    """Return a figure with five significant digits."""
    return float(f"{value:.5g}")


def wait(at: At) -> None:
    """Wait for the device."""
    if at.on_gpu:
        torch.cuda.synchronize()


def free() -> None:
    """Free the memory of what is gone, so that the next variants find the device empty."""
    gc.collect()
    torch.cuda.empty_cache()
