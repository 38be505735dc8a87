"""What was measured while the program ran: losses, gradients, parameters.

A part of the record of evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of one step of one optimizer.

    Attributes:
        iteration: Counted from 0.
        optimizer: Its place in `Static.optimizers`.
        loss: What backward was called on, without its loss scale; None when it was not seen.
        gradient_norm: L2 norm of what the optimizer was given; None when it did not step, or
            where a sample of them was finite and told enough.
        scale: The loss scale of the step; None without a scaler.
        skipped: Whether the scaler kept the optimizer from stepping.
        learning_rate: Of its first group.
    """

    iteration: int
    optimizer: int
    loss: float | None
    gradient_norm: float | None
    scale: float | None
    skipped: bool
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """The always-on numbers.

    Attributes:
        steps: The first and the latest steps; those between are thinned out.
        skips: Steps skipped by a scaler.
        longest_run_of_skips: Most in a row.
        smallest_scale: The smallest loss scale seen.
        first_bad: The first step whose loss or gradients were not finite; None without one.
    """

    steps: tuple[StepNumbers, ...] = ()
    skips: int = 0
    longest_run_of_skips: int = 0
    smallest_scale: float | None = None
    first_bad: StepNumbers | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One parameter of one step, looked at closely every so often.

    Attributes:
        iteration: Counted from 0.
        optimizer: Its place in `Static.optimizers`.
        parameter: Its name.
        format: Its format.
        gradient_format: The format of its gradient.
        gradient_zeros: Share of its gradient that is exactly zero.
        gradient_subnormal: Share of what is not zero that fp16 has no normal number for.
        unchanged: Share of its elements that had a gradient and did not change in the step.
        relative_update: Norm of the update over the norm of the parameter.
        retained: Whether the optimizer keeps what the parameter's format rounds away, or rounds at
            random.
    """

    iteration: int
    optimizer: int
    parameter: str
    format: str
    gradient_format: str
    gradient_zeros: float
    gradient_subnormal: float
    unchanged: float
    relative_update: float
    retained: bool = False


@dataclass(frozen=True, slots=True)
class Average:
    """A half tensor that follows a parameter.

    Attributes:
        parameter: The parameter's name.
        format: The average's.
        updates: How often it was written.
        lagging: Elements, over all updates, that were away from the parameter.
        stuck: How many of those an update did not change.
        site: The line that writes it.
    """

    parameter: str
    format: str
    updates: int
    lagging: int
    stuck: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class Grown:
    """The size of a parameter before the first step, and at the first bad one.

    Attributes:
        parameter: Its name.
        before: Its L2 norm before any step.
        after: Its L2 norm at the bad step.
    """

    parameter: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Growth:
    """How far training had moved the parameters when a step went bad.

    Attributes:
        iteration: The bad step; -1 without one.
        parameters: Those that had been there from the start.
    """

    iteration: int = -1
    parameters: tuple[Grown, ...] = ()

    @property
    def factor(self) -> float:
        """How many times larger they were, all together; 1 where that is unknown."""
        finite = [each for each in self.parameters if math.isfinite(each.after)]
        before = math.hypot(*(each.before for each in finite))
        return math.hypot(*(each.after for each in finite)) / before if before else 1.0


@dataclass(frozen=True, slots=True)
class RoundedCount:
    """Whole numbers, positions or timesteps, that were put into a half format that rounds them.

    Attributes:
        format: The format.
        largest: The largest of them.
        count: How many there are.
        distinct: How many different ones are left.
        changed: How many are another number now.
        module: Path of the module that did it; "" outside of one.
        site: The line.
    """

    format: str
    largest: float
    count: int
    distinct: int
    changed: int
    module: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class OwnScale:
    """A number that a line of the loop multiplies a loss by, and that falls where no step is made.

    Attributes:
        first: The number at first.
        last: At last.
        rises: How often it was larger than the one before.
        drops: How often it was smaller, with no step since the one before.
        steps: How many iterations have come to a step since it dropped first.
        site: The line.
    """

    first: float
    last: float
    rises: int
    drops: int
    steps: int
    site: Site | None
