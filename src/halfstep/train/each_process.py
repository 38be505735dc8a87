"""What each of several processes has of its own in a checkpoint, which the first one writes.

Random numbers (dropout), the sums of the log interval, and what is known of an open window. Weights
and optimizer are the same everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halfstep.train import random_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.train.checkpoint import Checkpoint
    from halfstep.train.meter import Meter
    from halfstep.train.nonfinite import NonFinite
    from halfstep.train.processes import Processes

OTHERS = "others"
"""Where `progress` of a checkpoint has the states of all ranks but the first."""


def own_state(meter: Meter, nonfinite: NonFinite) -> dict[str, Any]:
    """Return what this process has of its own, as plain data."""
    return {
        "rng": random_state.capture(),
        "meter": meter.state_dict(),
        "nonfinite": nonfinite.state_dict(),
    }


def restore(stored: Checkpoint, processes: Processes, meter: Meter, nonfinite: NonFinite) -> None:
    """Take over this process's state; under another number of processes, a part of all of them.

    The sums of processes that are gone go to the first one. New ones have no sums, and keep the
    random numbers that they were set up with.
    """
    first = {name: stored.progress[name] for name in ("meter", "nonfinite")}
    states = [{"rng": stored.rng, **first}, *stored.progress.get(OTHERS, [])]
    if len(states) == processes.size:
        own = states[processes.rank]
        meter.load_state_dict(own["meter"])
        nonfinite.load_state_dict(own["nonfinite"])
    else:
        if processes.is_first:
            meter.load_state_dict(_summed([state["meter"] for state in states]))
        all_finite = all(state["nonfinite"]["finite"] for state in states)
        nonfinite.load_state_dict({**first["nonfinite"], "finite": all_finite})
    # Last, as building draws random numbers.
    if processes.rank < len(states):
        random_state.restore(states[processes.rank]["rng"])


def number(stored: Checkpoint) -> int:
    """Return how many processes the run had."""
    return 1 + len(stored.progress.get(OTHERS, []))


def _summed(meters: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sums = ("loss_sum", "hits", "images", "seen")
    windows = zip(*(meter["window"] for meter in meters), strict=True)
    return {
        **meters[0],
        **{name: sum(meter[name] for meter in meters) for name in sums},
        "window": [sum(each) for each in windows],
        "window_finite": all(meter["window_finite"] for meter in meters),
    }
