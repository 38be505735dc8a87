"""Measures settings in turn, round by round, and prints a line for each turn.

Nothing on the screen changes during a measurement, because on a small machine the display itself
costs time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from rich.text import Text

from halfstep.show.units import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

_Setting = TypeVar("_Setting")
_Figure = TypeVar("_Figure")


def take_turns(
    settings: Sequence[_Setting],
    rounds: int,
    measure: Callable[[_Setting], _Figure],
    *,
    label: Callable[[_Setting], str],
    write: Callable[[_Figure], str],
    console: Console,
) -> list[list[_Figure]]:
    """Measure every setting once in each round.

    Args:
        settings: The settings, in order.
        rounds: The number of rounds.
        measure: Measures a setting once.
        label: Returns the name of a setting.
        write: Formats a figure with its unit.
        console: Prints the progress.

    Returns:
        The figures of each setting, one per round.
    """
    figures: list[list[_Figure]] = [[] for _ in settings]
    turns = rounds * len(settings)
    began = time.monotonic()
    for turn in range(turns):
        number, place = divmod(turn, len(settings))
        setting = settings[place]
        prefix = f"[{turn + 1}/{turns}] round {number + 1} of {rounds}, {label(setting)}: "
        console.print(Text(prefix), end="", soft_wrap=True)
        try:
            figures[place].append(measure(setting))
        except BaseException:
            console.print()
            raise
        left = (time.monotonic() - began) / (turn + 1) * (turns - turn - 1)
        ending = f", about {duration(left)} left" if left else ""
        console.print(Text(write(figures[place][-1]) + ending), soft_wrap=True)
    return figures
