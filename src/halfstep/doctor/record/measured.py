"""Measurements while the program ran: losses, gradients, parameters.

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
        loss: The tensor that backward was called on, without its loss scale; None if not seen.
        gradient_norm: L2 norm of the optimizer's gradients; None if it did not step, or if only a
            sample of the gradients was checked.
        scale: The loss scale of the step; None without a scaler.
        skipped: Whether the scaler skipped the step.
        learning_rate: Learning rate of the first parameter group.
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
    """The numbers that are measured in every step.

    Attributes:
        steps: The first and the latest steps, and some of those between.
        skips: Steps skipped by a scaler.
        longest_run_of_skips: Largest number of skipped steps in a row.
        smallest_scale: The smallest loss scale seen.
        first_bad: The first step with a non-finite loss or gradient; None without one.
        before_bad: The last step before it in which its optimizer changed parameters; None without
            one.
    """

    steps: tuple[StepNumbers, ...] = ()
    skips: int = 0
    longest_run_of_skips: int = 0
    smallest_scale: float | None = None
    first_bad: StepNumbers | None = None
    before_bad: StepNumbers | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements of one parameter in one sampled step.

    Attributes:
        iteration: Counted from 0.
        optimizer: Its place in `Static.optimizers`.
        parameter: Its name.
        format: Its format.
        gradient_format: The format of its gradient.
        gradient_zeros: Share of gradient elements that are exactly zero.
        gradient_subnormal: Share of nonzero gradient elements that are subnormal in fp16.
        unchanged: Share of the elements with a gradient that did not change in the step.
        relative_update: Norm of the update over the norm of the parameter.
        retained: Whether the optimizer keeps the rounding error, or rounds stochastically.
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
    """An average of a parameter, in a half format.

    Attributes:
        parameter: The parameter's name.
        format: Format of the average.
        updates: How often it was written.
        lagging: Elements, over all updates, that differed from the parameter.
        stuck: How many of these did not change in the update.
        site: The line that updates it.
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
    """Growth of the parameters up to the first bad step, or up to the last step without one.

    Attributes:
        iteration: This step; -1 if no step could be examined.
        parameters: The parameters that existed from the start.
    """

    iteration: int = -1
    parameters: tuple[Grown, ...] = ()

    @property
    def factor(self) -> float:
        """Growth of the norm of all parameters together; 1 if unknown."""
        finite = [each for each in self.parameters if math.isfinite(each.after)]
        before = math.hypot(*(each.before for each in finite))
        return math.hypot(*(each.after for each in finite)) / before if before else 1.0


@dataclass(frozen=True, slots=True)
class RoundedCount:
    """Whole numbers (positions, timesteps) that a half format has rounded.

    Attributes:
        format: The format.
        largest: The largest number.
        count: Number of them.
        distinct: Number of different values after rounding.
        changed: Number of rounded ones.
        module: Path of the module that rounded them; "" outside of one.
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
    """A factor of a loss in the loop's own code that falls when a step is left out.

    Attributes:
        first: The first value.
        last: The last value.
        rises: How often it increased.
        drops: How often it decreased without a step in between.
        steps: Number of iterations with a step since the first decrease.
        site: The line.
    """

    first: float
    last: float
    rises: int
    drops: int
    steps: int
    site: Site | None
