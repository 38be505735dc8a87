"""Tries the changes that rules suggest for a bad step, by running the step with changed lines.

If the step then fails at another line, the change that rules suggest there is made, too, for
example at a second operator that overflows. If it still fails at the same line, or cannot run, the
next change for this line is tried, for example a clamp.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from halfstep.doctor.record import Precision, recorded
from halfstep.doctor.record.attempts import Attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.doctor.record import Birth, Evidence, Replay
    from halfstep.doctor.record.attempts import Edit, Suggestion
    from halfstep.doctor.record.sites import Site
    from halfstep.doctor.replay.replay import Replayer

MOST = 6


class Trying:
    """Tries changes of one step.

    Args:
        replayer: Runs the step.
        suggest: Returns the changes that rules suggest for the evidence of a step, in the order to
            try them.
        scaled: Whether the step has a loss scale, which may be too high for it.
    """

    def __init__(
        self,
        replayer: Replayer,
        suggest: Callable[[Evidence], Sequence[Suggestion]],
        *,
        scaled: bool,
    ) -> None:
        self._replayer = replayer
        self._suggest = suggest
        self._scale = 1.0 if scaled else None
        self._left = MOST
        self._exact: float | None = None
        self._has_run = False

    def attempt(self, births: Sequence[Birth], replays: Sequence[Replay]) -> Attempt | None:
        """Try the suggested changes until the step is finite.

        Args:
            births: The births in the step.
            replays: The replays of the step.

        Returns:
            The attempt; None if no change is suggested, or if none can be put into effect.
        """
        first = self._suggested(births, replays)
        if not first:
            return None
        code, change = first[0].code, first[0].change
        self._exact = next((each.loss for each in replays if _is_finite_in_fp32(each)), None)
        found = self._search([], births, replays)
        if found is None:
            return Attempt(code, change, change, finite=False) if self._has_run else None
        made, apart = found
        return Attempt(code, change, _lines(made), finite=True, apart=apart)

    def _suggested(
        self, births: Sequence[Birth], replays: Sequence[Replay]
    ) -> Sequence[Suggestion]:
        return self._suggest(
            recorded(births=tuple(births), replays=tuple(replays), precision=Precision())
        )

    def _search(
        self, made: list[Suggestion], births: Sequence[Birth], replays: Sequence[Replay]
    ) -> tuple[list[Suggestion], float | None] | None:
        """Return changes that make the step finite, and how far its loss then is from fp32."""
        for each in self._suggested(births, replays):
            edits = [edit for one in (*made, each) for edit in one.edits]
            if self._left == 0 or _overlap(edits):
                continue
            self._left -= 1
            try:
                with self._replayer.changed(edits):
                    self._has_run = True
                    plain, exact = self._run(), self._replayer.fp32()
                    if plain.finite:
                        return [*made, each], _apart(plain.loss, self._exact or exact.loss)
                    later = () if plain.note else self._replayer.traced(scale=self._scale)[0]
            except ValueError:
                continue
            if _place(later) not in (None, _place(births)):
                found = self._search([*made, each], later, (plain, exact))
                if found is not None:
                    return found
        return None

    def _run(self) -> Replay:
        scale = self._scale
        return self._replayer.plain() if scale is None else self._replayer.at_scale(scale)


def _is_finite_in_fp32(replay: Replay) -> bool:
    return replay.name == "fp32" and replay.finite


def _place(births: Sequence[Birth]) -> Site | None:
    """Return the line that first makes inf or NaN."""
    return next((each.user_site for each in births if each.culprit), None)


def _overlap(edits: list[Edit]) -> bool:
    return len({(each.file, each.line) for each in edits}) < len(edits)


def _lines(made: list[Suggestion]) -> tuple[str, ...]:
    """Return the lines of all changes, each with its place except the first."""
    lines = [*made[0].change]
    for each in made[1:]:
        file, line = each.edits[0].file, each.edits[0].line
        place = () if each.change[0].startswith("@ ") else (f"@ {file.rpartition('/')[2]}:{line}",)
        lines += [*place, *each.change]
    return tuple(lines)


def _apart(loss: float | None, exact: float | None) -> float | None:
    if loss is None or exact is None or not math.isfinite(exact):
        return None
    return abs(loss - exact) / abs(exact) if exact else abs(loss)
