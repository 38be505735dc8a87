"""Tries the changes that rules suggest for a bad step, by running the step with changed lines.

An insufficient change is followed by the change that rules suggest for the changed step, for
example for a second operator that overflows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record import Precision, recorded
from halfstep.doctor.record.attempts import Attempt, Edit, Suggestion
from halfstep.doctor.replay.edits import in_effect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.doctor.record import Birth, Evidence, Replay
    from halfstep.doctor.replay.replay import Replayer

MOST = 4


def attempt(
    replayer: Replayer,
    births: Sequence[Birth],
    replays: Sequence[Replay],
    suggest: Callable[[Evidence], Suggestion | None],
    *,
    scaled: bool,
) -> Attempt | None:
    """Try the suggested changes of a step one after the other, until it is finite.

    Args:
        replayer: Runs the step.
        births: The births in the step.
        replays: The replays of the step.
        suggest: Returns the change that rules suggest for the evidence of a step.
        scaled: Whether the step has a loss scale, which may be too high for it.

    Returns:
        The attempt; None if no change is suggested, or if it cannot be put into effect.
    """
    made: dict[tuple[str, int], tuple[Edit, Suggestion]] = {}
    first: Suggestion | None = None
    for _ in range(MOST):
        found = suggest(
            recorded(births=tuple(births), replays=tuple(replays), precision=Precision())
        )
        if found is None:
            break
        new = {(each.file, each.line): (each, found) for each in found.edits}
        if all(place in made and made[place][0] == each for place, (each, _) in new.items()):
            break
        first, made = first or found, made | new
        edits = [each for each, _ in made.values()]
        if not replayer.can_change(edits):
            return None
        try:
            with in_effect(edits):
                plain = replayer.at_scale(1.0) if scaled else replayer.plain()
                exact = replayer.fp32()
                if plain.finite:
                    apart = _apart(plain.loss, exact.loss)
                    return Attempt(first.code, first.change, _lines(made), finite=True, apart=apart)
                births = replayer.traced(scale=1.0 if scaled else None)[0]
        except ValueError:
            return None
        replays = (plain, exact)
    if first is None:
        return None
    return Attempt(first.code, first.change, _lines(made), finite=False)


def _lines(made: dict[tuple[str, int], tuple[Edit, Suggestion]]) -> tuple[str, ...]:
    """Return the lines of all changes, each with its place except the first."""
    changes = list(dict.fromkeys(each.change for _, each in made.values()))
    lines = [*changes[0]]
    for change in changes[1:]:
        edit = next(edit for edit, each in made.values() if each.change == change)
        headed = change[0].startswith("@ ")
        lines += [*(() if headed else (f"@ {_name(edit)}",)), *change]
    return tuple(lines)


def _name(edit: Edit) -> str:
    return f"{edit.file.rpartition('/')[2]}:{edit.line}"


def _apart(loss: float | None, exact: float | None) -> float | None:
    if loss is None or exact is None or not math.isfinite(exact):
        return None
    return abs(loss - exact) / abs(exact) if exact else abs(loss)
