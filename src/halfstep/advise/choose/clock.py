"""How far a search is, how long the rest takes, and when its time budget is spent.

The clock decides only which recipes are examined. A recipe whose search it ends has no verdict.
"""

from __future__ import annotations

import math
import time
from statistics import median_low
from typing import TYPE_CHECKING, Protocol

from halfstep.advise.choose.record import STEPS
from halfstep.show import units

if TYPE_CHECKING:
    from collections.abc import Callable

USUAL_PASSES = 4.0
"""Of a recipe that needs no exceptions: what if, a rehearsal, and sometimes one more."""
SHORTEST = 3 + 1 / 3
"""Passes of a recipe that is safe at once; with less time than that it is not begun."""
_WORTH_TELLING = 10
"""Seconds from which the time that is left is told."""


class Tell(Protocol):
    """Is told what is done next, and how far that is."""

    def __call__(self, what: str, detail: str = "", /) -> None:
        """Take it in."""


def silent(what: str, detail: str = "", /) -> None:
    """Tell nobody."""
    del what, detail


def time_left(seconds: float) -> str:
    """Write the time that is left as the end of a detail; "" for a short one."""
    return f"; about {units.duration(seconds)} left" if seconds >= _WORTH_TELLING else ""


class BudgetSpentError(Exception):
    """The time budget ends before what would be done next."""


class Clock:
    """Counts steps and passes, tells the time that is left, and ends what would be late.

    Args:
        recipes: How many are to be examined.
        budget: Seconds from now on; None for no limit.
        tell: Is told what is done next.
        now: The time in seconds.
    """

    def __init__(
        self,
        recipes: int,
        budget: float | None = None,
        tell: Tell = silent,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recipes = recipes
        self._budget = math.inf if budget is None else budget
        self._tell = tell
        self._now = now
        self._began = self._before = self._first = now()
        self._aside = self._late = 0.0
        self._fastest = math.inf
        self._done = self._finished = 0.0
        self._place = 0
        self._took: list[float] = []
        self._what = "fp32"

    def recording(self, step: int) -> None:
        """Say that a step in fp32 comes next, from 0.

        Raises:
            BudgetSpentError: If all of them do not fit, however fast the others are.
        """
        self._done = step
        if step:
            self._fastest = min(self._fastest, self._now() - self._before)
        self._before = self._now()
        # The first step also warms up; by itself it says little of the others.
        rest = (STEPS - step) * self._fastest if step > 1 else 0.0
        if self._elapsed + rest > self._budget:
            raise BudgetSpentError
        self._tell(self._what, f"step {step + 1} of {STEPS}{self._left() if step else ''}")

    def examining(self, recipe: str) -> None:
        """Say that the search for a recipe comes next.

        Raises:
            BudgetSpentError: If not even the shortest search fits.
        """
        if self._place:
            self._took.append(self._done - self._finished)
        else:
            self._done = STEPS
        self._place += 1
        self._finished = self._done
        self._what = f"{recipe} (recipe {self._place} of {self._recipes})"
        self.passing(0, needs=SHORTEST)

    def passing(self, passes: float, *, needs: float | None = None) -> None:
        """Say that passes come next.

        Raises:
            BudgetSpentError: If they, or those that are needed, do not fit.
        """
        self._require(self._pace * (passes if needs is None else needs))
        here = max(self._finished + self._usual, self._done + passes)
        total = here + self._usual * (self._recipes - self._place)
        self._tell(
            self._what, f"pass {math.floor(self._done) + 1} of about {total:.0f}{self._left()}"
        )
        self._done += passes

    def following(self, step: int, steps: int) -> None:
        """Say that a step of the optimizer alone comes next, from 0; these are no passes.

        Raises:
            BudgetSpentError: If all of them do not fit.
        """
        if step:
            self._aside += self._now() - self._before
            each = (self._now() - self._first) / step
            rest = each * (steps - step)
            self._require(rest)
            detail = f"step {step + 1} of {steps} of the optimizer alone{self._left(rest)}"
            self._tell(self._what, detail)
        else:
            self._first = self._now()
        self._before = self._now()

    def needed(self, left: int) -> float:
        """Return about how many seconds it takes in all, where so many recipes were left out."""
        steps = 0 if self._place else STEPS - self._done
        usual = max(self._usual, USUAL_PASSES)
        return self._elapsed + self._pace * (steps + usual * left) + self._late

    @property
    def _elapsed(self) -> float:
        return self._now() - self._began

    @property
    def _pace(self) -> float:
        """Seconds of a pass so far."""
        return (self._elapsed - self._aside) / self._done if self._done else 0.0

    @property
    def _usual(self) -> float:
        """Passes that most recipes take; one that needs many, or few, says little of the others."""
        return median_low([USUAL_PASSES, *(took for took in self._took if took >= SHORTEST)])

    def _rest(self) -> float:
        """Return about how many seconds the steps and the recipes take that are left."""
        if self._place == 0:
            return self._pace * (STEPS - self._done + USUAL_PASSES * self._recipes)
        others = self._usual * (self._recipes - self._place)
        here = max(0.0, self._usual - (self._done - self._finished))
        return self._pace * (others + here)

    def _require(self, seconds: float) -> None:
        if self._elapsed + seconds > self._budget:
            self._late = max(self._late, seconds)
            raise BudgetSpentError

    def _left(self, more: float = 0.0) -> str:
        return time_left(min(self._rest() + more, self._budget - self._elapsed))
