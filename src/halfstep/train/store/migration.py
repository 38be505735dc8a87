"""Converts checkpoints of earlier releases to the current format.

    1    release 0.1.0: no format number; `progress` contains counters, observers, other processes
    2    each observer has its own state, by its name

A new field needs no new format number if its default describes earlier checkpoints. Fields that
this release does not know are ignored.
"""

from __future__ import annotations

from typing import Any

FORMAT = 2
_OF_EARLY_STOPPING = ("waiting", "target")


class NewerFormatError(Exception):
    """A later release wrote the file."""


def migrated(state: Any) -> dict[str, Any]:
    """Return the content of a checkpoint file, converted to the current format.

    Raises:
        NewerFormatError: If a later release wrote the file, in a newer format.
        TypeError: If the content is not a mapping, or its format number is not an integer.
    """
    if not isinstance(state, dict):
        raise TypeError("no mapping")
    written_in = state.get("format", 1)
    if not isinstance(written_in, int):
        raise TypeError("the format is not a number")
    if written_in > FORMAT:
        raise NewerFormatError(
            f"has format {written_in} of a later halfstep, and this one reads up to {FORMAT}; "
            "install that release, or a newer one"
        )
    return _from_1(state) if written_in == 1 else state


def _from_1(state: dict[str, Any]) -> dict[str, Any]:
    progress = dict(state["progress"])
    others = progress.pop("others", [])
    own = {name: progress.pop(name) for name in ("meter", "nonfinite") if name in progress}
    shares = progress.pop("unchanged_shares", [])
    waited = {name: progress.pop(name) for name in _OF_EARLY_STOPPING if name in progress}
    shared = {"probes": {"unchanged_shares": shares}}
    if len(waited) == len(_OF_EARLY_STOPPING):
        shared["early_stopping"] = waited
    return {
        **state,
        "progress": progress,
        "observers": {**_observers_from_1(own), **shared},
        "others": [
            {"rng": rank["rng"], "observers": {**_observers_from_1(rank), **shared}}
            for rank in others
        ],
    }


def _observers_from_1(rank: dict[str, Any]) -> dict[str, dict[str, Any]]:
    if not {"meter", "nonfinite"} <= rank.keys():
        return {}
    meter, nonfinite = dict(rank["meter"]), rank["nonfinite"]
    steps = {name: meter.pop(name) for name in ("windows", "bad")}
    return {
        "nonfinite_steps": {**steps, "finite": meter.pop("window_finite")},
        "meter": meter,
        "nonfinite": {"finite": nonfinite["finite"]},
        "statistics": {"saved": nonfinite["statistics"]},
    }
