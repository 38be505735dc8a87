"""Published speeds beside the columns of their traces, and the groups that they are counted in."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from published_steps import Measurement, traced

from halfstep.advise.predict.gpus import gpus
from halfstep.advise.predict.workload import Workload, workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from halfstep.advise.predict.trace import Trace

FOLDS = 6
"""Groups of families, each left out of a fit."""


@dataclass(frozen=True)
class Case:
    """A measurement with what predicts it."""

    measured: Measurement
    work: Workload


def cases(found: Sequence[Measurement], cache: Path) -> list[Case]:
    """Return measurements with their traces' columns, those with a trace alone, duplicates once."""
    traces: dict[str, Trace | None] = {}
    made = []
    for each in found:
        name = each.trace_name
        if name not in traces:
            traces[name] = _trace(each, cache)
        trace = traces[name]
        if trace is not None:
            tf32 = each.precision != "fp32"
            made.append(Case(each, workload(trace.calls, gpus()[each.gpu], tf32=tf32)))
    return _once(made)


def _once(found: Sequence[Case]) -> list[Case]:
    """Count models that were published under several names once: same step, nearly same speed."""
    kept: dict[Any, Case] = {}
    for case in found:
        asked, work = case.measured, case.work
        key = (asked.machine, asked.gpu, asked.layout, asked.precision, asked.batch, asked.family)
        step = (len(work), float(work.flops @ work.count), float(work.moved @ work.count))
        kept.setdefault((*key, *step, f"{asked.seconds:.2g}"), case)
    return list(kept.values())


def _trace(asked: Measurement, cache: Path) -> Trace | None:
    kept = served_by(asked, cache)
    if kept is None:
        return None
    trace = traced(kept, cache)
    if kept.layout == asked.layout:
        return trace
    calls = tuple(replace(c, op=replace(c.op, channels_last=True)) for c in trace.calls)
    return replace(trace, calls=calls)


def served_by(asked: Measurement, cache: Path) -> Measurement | None:
    """Return the measurement whose trace serves: the same operators in NCHW serve NHWC."""
    for each in (asked, replace(asked, layout="nchw")):
        if (cache / f"{each.trace_name}.json").exists():
            return each
    return None


def named(asked: Measurement) -> str:
    """Return what tells a published speed of timm's from the others."""
    return f"{asked.model} {asked.image_size} {asked.layout}"


def is_test(measured: Measurement) -> bool:
    """Tell whether a speed is of a family that no constant is fitted to: a third, by its name."""
    name = measured.family.encode()
    return not measured.machine and int(hashlib.sha256(name).hexdigest(), 16) % 3 == 0


def folds(chosen: Sequence[Case]) -> list[str]:
    """Return the group of families that each case is left out with; "" for none."""
    families = sorted({case.measured.family for case in chosen if not case.measured.machine})
    return [
        "" if case.measured.machine else f"families {families.index(case.measured.family) % FOLDS}"
        for case in chosen
    ]


def card(gpu: str) -> str:
    """Return what a GPU is called without the size of its memory."""
    return gpu.removesuffix("_16").removesuffix("_32")


def alike(groups: Sequence[Any]) -> NDArray[np.float64]:
    """Weigh rows so that every group counts as much as any other, however many rows it has."""
    sizes = Counter(groups)
    return np.array([1 / sizes[group] for group in groups])


def paired(chosen: Sequence[Case]) -> list[tuple[int, int]]:
    """Return where the full and the half step of the same model on the same machine are."""
    full = {
        (c.measured.machine, c.measured.gpu, c.measured.model): at
        for at, c in enumerate(chosen)
        if c.measured.precision in ("fp32", "tf32")
    }
    return [
        (full[key], at)
        for at, c in enumerate(chosen)
        if c.measured.precision not in ("fp32", "tf32")
        and (key := (c.measured.machine, c.measured.gpu, c.measured.model)) in full
    ]


def subset(chosen: Sequence[Case], mask: NDArray[np.bool_]) -> list[Case]:
    """Return the cases where a mask is true."""
    return [case for case, wanted in zip(chosen, mask, strict=True) if wanted]
