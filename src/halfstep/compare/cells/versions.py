"""Checks whether all results of a comparison have the same versions and the same hardware.

A comparison may continue after an upgrade, or on another machine. Its accuracies then need a
warning, and its times cannot be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.compare.cells.results import Result

SHARED = ("halfstep", "torch", "device_name", "threads")
"""The keys of `environment.json` whose values should be the same for all cells."""


def different_versions(result: Result) -> list[str]:
    """Return the versions of a result that differ from the installed ones, with both versions."""
    then = result.environment
    return [
        f"{package} {then[package]} (now {now})"
        for package, now in versions().items()
        if package in then and then[package] != now
    ]


def mixed(results: Sequence[Result]) -> list[str]:
    """Return one line for each key of `SHARED` in which the cells differ."""
    lines = []
    for name in SHARED:
        cells: dict[str, list[str]] = {}
        for result in results:
            if name in result.environment:
                cells.setdefault(str(result.environment[name]), []).append(result.cell.label)
        if len(cells) > 1:
            parts = (f"{value} ({_some(labels)})" for value, labels in cells.items())
            lines.append(f"runs differ in {name}: {', '.join(parts)}; --fresh repeats all of them")
    return lines


def _some(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    return f"{labels[0]} and {len(labels) - 1} more"
