"""Settings take turns, round by round; a line a turn says how it goes.

Nothing moves on the screen while something is measured: on a small machine, that alone costs time.
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
        settings: What takes turns, in order.
        rounds: How often.
        measure: Measures a setting once.
        label: Names a setting.
        write: Writes a figure with its unit.
        console: Is told how it goes.

    Returns:
        For each setting its figures, one a round.
    """
    found: list[list[_Figure]] = [[] for _ in settings]
    turns = rounds * len(settings)
    began = time.monotonic()
    for turn in range(turns):
        number, place = divmod(turn, len(settings))
        setting = settings[place]
        said = f"[{turn + 1}/{turns}] round {number + 1} of {rounds}, {label(setting)}: "
        console.print(Text(said), end="", soft_wrap=True)
        try:
            found[place].append(measure(setting))
        except BaseException:
            console.print()
            raise
        left = (time.monotonic() - began) / (turn + 1) * (turns - turn - 1)
        ending = f", about {duration(left)} left" if left else ""
        console.print(Text(write(found[place][-1]) + ending), soft_wrap=True)
    return found
