"""Times a call on a device: seconds of its kernels, and of the host to launch it."""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_WARM = 2
_REPEATS = 20
_ENOUGH = 0.05
"""Seconds of repeats after which a call is not repeated again."""
_EVENT = 20e-6
"""Seconds of the host to record an event."""
_CYCLES = 2e9
"""Clock cycles of a device in a second, at most."""
_LAUNCHES = 200
_ELEMENTS = 2**10


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the median seconds of a call, from repeats on an otherwise idle device.

    On CUDA, the repeats are enqueued while the device sleeps, so that the time of the host does not
    count, even where it is longer than that of the kernels.
    """
    for _ in range(_WARM):
        began = time.perf_counter()
        call()
    if device.type != "cuda":
        return _on_host(call)
    host = time.perf_counter() - began  # of the last call, which is warm
    stream = torch.cuda.current_stream(device)
    events = [torch.cuda.Event(enable_timing=True)]
    torch.cuda.synchronize(device)
    began = time.perf_counter()
    ahead = min(_ENOUGH, (host + _EVENT) * _REPEATS)
    with torch.cuda.device(device):
        torch.cuda._sleep(int(ahead * _CYCLES))  # noqa: SLF001  (as the tests of torch do)
    events[0].record(stream)
    while len(events) <= _REPEATS:
        call()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record(stream)
        if time.perf_counter() - began > _ENOUGH and len(events) > 3:
            break
    torch.cuda.synchronize(device)
    return median(float(a.elapsed_time(b)) / 1e3 for a, b in pairwise(events))


def _on_host(call: Callable[[], Any]) -> float:
    taken: list[float] = []
    while len(taken) < _REPEATS and (len(taken) < 3 or sum(taken) < _ENOUGH):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return median(taken)


def launch_seconds(device: torch.device) -> float:
    """Return the seconds that the host takes to launch a small kernel."""
    value = torch.zeros(_ELEMENTS, device=device)
    value.add_(1)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(_LAUNCHES):
        value.add_(1)
    taken = (time.perf_counter() - began) / _LAUNCHES
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return taken
