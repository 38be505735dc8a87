"""The parts of a report besides tables and charts: memory, formats, and versions and machines."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from halfstep.compare.output.columns import on_cpu
from halfstep.compare.rows.measures import MEMORY_PARTS
from halfstep.show.units import mebibytes, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.compare.cells.results import Result
    from halfstep.compare.rows.rows import Row


_FEW = 10 * 2**20
"""Bytes below which memory is printed with a decimal, so that small parts are not "0 MiB"."""


def memory(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a bar for each row: its mean peak memory, also as a share of the largest one."""
    known = [(row, row.measures["peak_memory_bytes"]) for row in rows]
    most = max((spread.mean for _, spread in known if spread is not None), default=0.0)
    bars = []
    for row, spread in known:
        if spread is None or most <= 0:
            continue
        parts = _parts(row, most)
        rest = spread.mean - most * sum(part["share"] for part in parts)
        bars.append(
            {
                "label": row.arm.label,
                "text": f"{mebibytes(spread.mean)} MiB",
                "share": spread.mean / most,
                "parts": parts,
                "rest": _size(rest) if rest > 0 else "",
                "source": " ".join(result.source("peak_memory_bytes") for result in row.measured),
            }
        )
    return bars


def memory_note(results: Sequence[Result]) -> str:
    """Return the definition of the peak, and the content of the part "other"."""
    note = 'The part "other" contains temporary tensors and the working memory of the operators.'
    if not on_cpu(results):
        return note
    return (
        "On a CPU, the peak is the increase of the process's resident memory during training. "
        f'{note} On a CPU, "other" also contains libraries that are loaded during training, and '
        "memory that was freed but not yet returned to the system."
    )


def _parts(row: Row, most: float) -> list[dict[str, Any]]:
    """Return the parts of the peak memory, each as a mean over the seeds that measured it."""
    facts = []
    for name, label in MEMORY_PARTS.items():
        key = f"held_bytes.{name}"
        known = [
            (result, size) for result in row.measured if (size := result.number(key)) is not None
        ]
        if known:
            size = statistics.fmean(size for _, size in known)
            facts.append(
                {
                    "name": name,
                    "label": label,
                    "share": size / most,
                    "text": _size(size),
                    "source": " ".join(result.source(key) for result, _ in known),
                }
            )
    return facts


def _size(count: float) -> str:
    return f"{count / 2**20:.1f} MiB" if count < _FEW else f"{mebibytes(count)} MiB"


def environment(results: Sequence[Result]) -> list[dict[str, str]]:
    """Return the environment of the runs: each fact once, or once per value if the runs differ."""
    places: dict[str, dict[str, list[str]]] = {}
    for result in results:
        for name, value in result.environment.items():
            file = f"{result.cell.directory.name}/run/environment.json#{name}"
            places.setdefault(name, {}).setdefault(str(value), []).append(file)
    return [
        {"name": name, "value": value, "source": " ".join(files), "differs": str(len(values) > 1)}
        for name, values in places.items()
        for value, files in values.items()
    ]


def _share(share: float) -> str:
    return "100 %" if share == 1 else f"{percent(share)} %"


def formats(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return, for each row, the share of the arithmetic in each format, and the excepted layers.

    The values are from the first seed of a row whose summary has formats. Rows without such a seed
    are left out.
    """
    facts = []
    for row in rows:
        looked = next((result for result in row.measured if result.summary.get("formats")), None)
        if looked is None:
            continue
        given = looked.summary["formats"]
        facts.append(
            {
                "label": row.arm.label,
                "shares": [
                    {"text": f"{_share(share)} {name}", "source": looked.source("formats")}
                    for name, share in given.get("shares", {}).items()
                ],
                "exceptions": [
                    {"layer": layer, "reason": reason, "source": looked.source("formats")}
                    for layer, reason in given.get("exceptions", {}).items()
                ],
            }
        )
    return facts
