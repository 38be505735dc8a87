"""What the ledger of learning rates holds: for each optimizer and scheduler, the plan and the use.

The program's author gives each parameter group a rate when the optimizer is made. A load, a
scheduler or the loop may replace it. A scheduler has a plan of a certain length, of which its moves
cover a part, and the plan is used by the steps of its optimizer.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, ClassVar

from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time

LOW = 1e-3
"""The share of its peak below which a learning rate is almost 0."""


def assigned_name(text: str) -> str:
    """Return the variable or attribute to which a statement assigns; "" if unknown."""
    found = re.match(r"([\w.]+)(?:\s*:[^=]+)?\s*=(?!=)", text)
    return found[1] if found else ""


@dataclass(frozen=True, slots=True)
class Rates:
    """The learning rates of one optimizer in its steps.

    Attributes:
        number: Number of the optimizer.
        steps: Number of its steps with known rates.
        zeros: Number of these steps at a rate of 0 in each group.
        zero_from: The iteration of the first of them.
        zero_to: The iteration of the last of them.
        moving_from: The iteration of the first step at another rate; -1 without one.
        moving_to: The iteration of the last step at another rate.
        last_moving: The rate of this step; 0 without one.
        largest: The largest rate that a step or a scheduler had.
        changes: How often the rate of the first group changed from one step to the next.
        valley: The lowest rate of the first group after it has fallen; inf if it never has.
        valley_at: Number of its steps before it.
        turns: How often the rate rose again after it had fallen.
        leap: The largest rise from one step to the next since then.
        is_mirrored: Whether the rate only fell to its lowest value, and then took the same values
            in the reverse order.
        resumed: Whether a state was loaded whose scheduler had moved the rate.
        rate: The rate of the first group in this state.
        held: Number of steps since this state was loaded, if all of them had its rates; otherwise
            0.
        since: Number of steps since then.
        above: Whether a step since then had a larger rate than the loaded one.
        given: The rates that the groups had when the optimizer was made.
        is_default: Whether the program names no rate, and this is the default of the class.
        peaks: The largest rate of each group in a step.
        low_from: Number of its steps before the rate of the first group fell below a thousandth of
            its peak for good; -1 if that of the last step is not below it.
        last: The rate of the first group in the last step.
        equal: Number of steps in which all groups, of several, had the same rate.
        planned: The rate of the first group from which schedulers, also those of other packages,
            compute its rates; NaN if no scheduler has noted one in the group.
        made: The line that made the optimizer.
        loaded: The line that loaded the state.
        site: The line of the last step.
        written: The only line of the file of this step that assigns a rate to a group.
    """

    number: int
    steps: int = 0
    zeros: int = 0
    zero_from: int = -1
    zero_to: int = -1
    moving_from: int = -1
    moving_to: int = -1
    last_moving: float = 0.0
    largest: float = 0.0
    changes: int = 0
    valley: float = math.inf
    valley_at: int = -1
    turns: int = 0
    leap: float = 0.0
    is_mirrored: bool = False
    resumed: bool = False
    rate: float = math.nan
    held: int = 0
    since: int = 0
    above: bool = False
    given: tuple[float, ...] = ()
    is_default: bool = False
    peaks: tuple[float, ...] = ()
    low_from: int = -1
    last: float = math.nan
    equal: int = 0
    planned: float = math.nan
    made: Site | None = None
    loaded: Site | None = None
    site: Site | None = None
    written: Site | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """One scheduler.

    Attributes:
        optimizer: Number of its optimizer.
        kind: Class of the scheduler.
        planned: Number of moves after which it ends, or restarts first; None if unknown.
        settles: Number of moves from which on a function gives the same factor; None if unknown.
        moves: How often it moved, after its construction.
        steps: How often a step of its optimizer was due since then, also one that was skipped.
        backwards: Number of backward passes, of any model, until the last step of its optimizer.
        furthest: The furthest position that it reached, in moves.
        backs: How often the loop set it back to an earlier position.
        idle: Number of its last moves that followed steps of another optimizer alone.
        successor: Number of this optimizer, which is of the same class and has the same parameters,
            or ones of the same shapes; -1 for none.
        mode: The mode of a scheduler that waits for a plateau; "" for another one.
        metrics: The numbers that it was given, up to 512.
        restored: Whether a state was loaded into it, or its start was given.
        after_resume: Whether it moved after its optimizer was resumed.
        below: Whether its construction has lowered the rate, as a warm-up does.
        made: The line that made it.
        made_by: Source text of the statement that made it; "" if unknown.
        site: The line that moved it last; None if the loop itself never did.
        later: The statement that follows the innermost loop around this line; None without one.
        unused: Whether it has a name, and no line of the program calls its `step` or passes it on.
    """

    optimizer: int
    kind: str
    planned: int | None = None
    settles: int | None = None
    moves: int = 0
    steps: int = 0
    backwards: int = 0
    furthest: float = 0.0
    backs: int = 0
    idle: int = 0
    successor: int = -1
    mode: str = ""
    metrics: tuple[float, ...] = ()
    restored: bool = False
    after_resume: bool = False
    below: bool = False
    made: Site | None = None
    made_by: str = ""
    site: Site | None = None
    later: Site | None = None
    unused: bool = False

    @property
    def length(self) -> int | None:
        """Number of moves that it is planned for; None if unknown."""
        return self.planned or self.settles

    @property
    def name(self) -> str:
        """The variable or attribute to which the program assigns the scheduler; "" if unknown."""
        return assigned_name(self.made_by)


@dataclass(frozen=True, slots=True)
class LearningRates:
    """The ledger: rates of each optimizer, and each scheduler."""

    signal: ClassVar[str] = "rates"
    optimizers: tuple[Rates, ...] = ()
    schedules: tuple[Schedule, ...] = ()

    def of(self, number: int) -> Rates:
        """Return the rates of an optimizer."""
        return next((each for each in self.optimizers if each.number == number), Rates(number))

    def schedules_of(self, number: int) -> Iterator[Schedule]:
        """Yield the schedulers of an optimizer, in the order in which they were made."""
        return (each for each in self.schedules if each.optimizer == number)
