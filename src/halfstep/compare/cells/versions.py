"""Whether the results of a comparison were made with the same versions on the same hardware.

A comparison may go on after an upgrade, or on another machine: its accuracies are then worth a
warning, and its times are not comparable at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.compare.cells.directory import versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.compare.cells.results import Result

SHARED = ("halfstep", "torch", "device_name", "threads")
"""What of `environment.json` figures of different cells should have in common."""


def different_versions(result: Result) -> list[str]:
    """Say which versions a result was made with that are not those of now."""
    then = result.environment
    return [
        f"{package} {then[package]} (now {now})"
        for package, now in versions().items()
        if package in then and then[package] != now
    ]


def mixed(results: Sequence[Result]) -> list[str]:
    """Say what cells of one comparison do not have in common, a line each."""
    said = []
    for name in SHARED:
        cells: dict[str, list[str]] = {}
        for result in results:
            if name in result.environment:
                cells.setdefault(str(result.environment[name]), []).append(result.cell.label)
        if len(cells) > 1:
            parts = (f"{value} ({_some(labels)})" for value, labels in cells.items())
            said.append(f"runs differ in {name}: {', '.join(parts)}; --fresh repeats all of them")
    return said


def _some(labels: Sequence[str]) -> str:
    if len(labels) == 1:
        return labels[0]
    return f"{labels[0]} and {len(labels) - 1} more"
