"""The time budget of a command, and the error that ends any part of it when the budget is spent."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


class BudgetSpentError(Exception):
    """The time budget does not suffice for the next action."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A time budget that begins when it is created.

    Attributes:
        seconds: The budget.
    """

    seconds: float
    _began: float = field(default_factory=time.monotonic)

    def used(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.seconds - self.used()

    def check(self) -> None:
        """Raise if nothing is left.

        Raises:
            BudgetSpentError: If the budget is spent.
        """
        if self.left() <= 0:
            raise BudgetSpentError
