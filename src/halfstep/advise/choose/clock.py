"""Tracks the progress of a search, estimates the time left, and enforces the time budget.

The clock decides only which recipes are examined. If it ends the search for a recipe, there is no
verdict on this recipe.
"""

from __future__ import annotations

import math
import time
from statistics import median_low
from typing import TYPE_CHECKING, Protocol

from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.choose.record import STEPS
from halfstep.show import units

if TYPE_CHECKING:
    from collections.abc import Callable

USUAL_PASSES = 4.0
"""Typical number of passes without exceptions: `single_calls.py`, and one or two rehearsals."""
SHORTEST = 3 + 1 / 3
"""Number of passes for a recipe that is safe at the first attempt; the minimum of a search."""
_WORTH_TELLING = 10
"""The time left is reported only from this number of seconds on."""


class Tell(Protocol):
    """A function that is called with a description of the next action, and its progress."""

    def __call__(self, what: str, detail: str = "", /) -> None:
        """Report the next action."""


def silent(what: str, detail: str = "", /) -> None:
    """Report nothing."""
    del what, detail


def time_left(seconds: float) -> str:
    """Return the text about the time left that ends a progress message; "" for a short time."""
    return f"; about {units.duration(seconds)} left" if seconds >= _WORTH_TELLING else ""


class Clock:
    """Counts steps and passes, reports the time left, and raises if the budget does not suffice.

    A pass is a forward and a backward pass.

    Args:
        recipes: The number of recipes to examine.
        budget: The time budget from now on, in seconds; None for no limit.
        tell: Called with a description of the next action, and its progress.
        now: Returns the current time in seconds.
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
        """Announce the next recorded step in fp32, by its number from 0.

        Raises:
            BudgetSpentError: If the remaining recorded steps do not fit into the budget, even if
                each is as fast as the fastest so far.
        """
        self._done = step
        if step:
            self._fastest = min(self._fastest, self._now() - self._before)
        self._before = self._now()
        # The first step includes warm-up, so it does not predict the others.
        rest = (STEPS - step) * self._fastest if step > 1 else 0.0
        if self._elapsed + rest > self._budget:
            raise BudgetSpentError
        self._tell(self._what, f"step {step + 1} of {STEPS}{self._left() if step else ''}")

    def examining(self, recipe: str) -> None:
        """Announce the search for the next recipe.

        Raises:
            BudgetSpentError: If not even the shortest search fits into the budget.
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
        """Announce the next passes.

        Raises:
            BudgetSpentError: If `needs` passes do not fit into the budget; by default, `passes`.
        """
        self._require(self._pace * (passes if needs is None else needs))
        here = max(self._finished + self._usual, self._done + passes)
        total = here + self._usual * (self._recipes - self._place)
        self._tell(
            self._what, f"pass {math.floor(self._done) + 1} of about {total:.0f}{self._left()}"
        )
        self._done += passes

    def following(self, step: int, steps: int) -> None:
        """Announce the next step of the optimizer alone, by its number from 0; it is not a pass.

        Raises:
            BudgetSpentError: If the rest of the `steps` steps does not fit into the budget.
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
        """Estimate the seconds for the whole search, including the `left` recipes not examined."""
        steps = 0 if self._place else STEPS - self._done
        usual = max(self._usual, USUAL_PASSES)
        return self._elapsed + self._pace * (steps + usual * left) + self._late

    @property
    def _elapsed(self) -> float:
        return self._now() - self._began

    @property
    def _pace(self) -> float:
        """Mean seconds per pass so far."""
        return (self._elapsed - self._aside) / self._done if self._done else 0.0

    @property
    def _usual(self) -> float:
        """Typical passes per recipe: a median, because a few recipes need many more or fewer."""
        return median_low([USUAL_PASSES, *(took for took in self._took if took >= SHORTEST)])

    def _rest(self) -> float:
        """Estimate the seconds for the remaining steps and recipes."""
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
