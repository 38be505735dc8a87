"""Measurements while the program ran: losses, gradients, parameters.

A part of the record of evidence.
"""

from __future__ import annotations

import math
from dataclasses import field
from statistics import median

from halfstep.doctor.record.sites import Site  # noqa: TC001  # pydantic reads it at run time
from halfstep.lazy_dataclass import dataclass

_FEWEST = 16  # losses
NO_OPTIMIZER = -1
"""The optimizer of the steps of a loop that has none, and updates its weights itself."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    """The numbers of one step of one optimizer.

    Attributes:
        iteration: Number of the iteration, from 0.
        optimizer: Index of the optimizer in `Static.optimizers`, or `NO_OPTIMIZER`.
        loss: The loss that backward was called on, without its loss scale; None if unknown.
        gradient_norm: L2 norm of the optimizer's gradients; None if a scaler skipped the step, or
            if only a sample of the gradients was checked; NaN if the engine skipped the step
            without a loss scale.
        scale: The loss scale of the step; None without a scaler.
        skipped: Whether a scaler, or the engine, skipped the step.
        learning_rate: Learning rate of the first parameter group; inf or NaN if that of another
            group is, and NaN without an optimizer.
    """

    iteration: int
    optimizer: int
    loss: float | None
    gradient_norm: float | None
    scale: float | None
    skipped: bool
    learning_rate: float

    @property
    def is_finite(self) -> bool:
        """Whether the loss is known and finite."""
        return self.loss is not None and math.isfinite(self.loss)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers that are measured in every step.

    Attributes:
        steps: The first 64 and the latest 256 steps of all optimizers.
        skips: Number of skipped steps.
        longest_run_of_skips: Largest number of skipped steps in a row.
        smallest_scale: The smallest loss scale seen.
        first_bad: The first step with a non-finite loss or gradient; None without one.
        before_bad: For each optimizer, the last step before `first_bad` in which it changed its
            parameters.
        bad_owners: Indices of the optimizers that had parameters with inf or NaN when `first_bad`
            was noticed: on a CPU before this step changed parameters, otherwise after it.
        spoiled: Whether parameters of an optimizer contained inf or NaN right after a bad step.
    """

    steps: tuple[StepNumbers, ...] = ()
    skips: int = 0
    longest_run_of_skips: int = 0
    smallest_scale: float | None = None
    first_bad: StepNumbers | None = None
    before_bad: tuple[StepNumbers, ...] = ()
    bad_owners: tuple[int, ...] = ()
    spoiled: bool = False

    def course(self, optimizer: int) -> tuple[float, float] | None:
        """Return the loss at the beginning and at the end of an optimizer's steps, as medians.

        Returns:
            The medians of the first and the last quarter of the losses; None for fewer than 16
            finite ones.
        """
        losses = [
            each.loss
            for each in self.steps
            if each.optimizer == optimizer and each.loss is not None and each.is_finite
        ]
        if len(losses) < _FEWEST:
            return None
        quarter = len(losses) // 4
        return median(losses[:quarter]), median(losses[-quarter:])

    @property
    def are_own(self) -> bool:
        """Whether the loop updates its weights itself, without an optimizer."""
        return bool(self.steps) and self.steps[0].optimizer == NO_OPTIMIZER

    @property
    def left_out(self) -> bool:
        """Whether halfstep's engine skipped a step for its gradients, without a loss scale.

        Running statistics are then as before the step.
        """
        return any(
            each.skipped and each.scale is None and each.gradient_norm is not None
            for each in self.steps
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """Measurements of one parameter in one sampled step.

    Attributes:
        iteration: Number of the iteration, from 0.
        optimizer: Index of the optimizer in `Static.optimizers`.
        parameter: Name of the parameter.
        format: Format of the parameter.
        gradient_format: Format of its gradient.
        gradient_zeros: Share of gradient elements that are exactly zero.
        gradient_subnormal: Share of nonzero gradient elements that are subnormal in fp16.
        unchanged: Share of the elements with a nonzero gradient that the step did not change.
        relative_update: L2 norm of the update, divided by the norm of the parameter.
        retained: Whether the optimizer keeps the rounding error, or rounds stochastically.
        norm: L2 norm of the parameter.
        relative_gradient: L2 norm of the gradient, divided by the norm of the parameter.
        uphill: Cosine of the angle between the update and the gradient: -1 for gradient descent.
        inward: Cosine of the angle between the update and the direction to zero: 1 for decay alone.
        loaded: Whether a state was loaded into the parameter's module.
        size: Median magnitude of the parameter's elements.
        few_values: Whether most elements had one of few values before the step, and each its own
            after it. Those at 0 and at the largest magnitude, which a mask or a clamp may give, do
            not count.
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
    norm: float = 0.0
    relative_gradient: float = 0.0
    uphill: float = 0.0
    inward: float = 0.0
    loaded: bool = False
    size: float = 0.0
    few_values: bool = False


@dataclass(frozen=True, slots=True)
class Average:
    """A moving average of a parameter that the loop keeps in a half format.

    Attributes:
        parameter: Name of the parameter.
        format: Format of the average.
        updates: Number of updates of the average.
        lagging: Number of elements that differed from the parameter before an update, summed over
            the updates.
        stuck: Number of these elements that the update did not change.
        site: The line that updates the average.
    """

    parameter: str
    format: str
    updates: int
    lagging: int
    stuck: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class BadGradients:
    """The contents of the gradients in the first bad step.

    Attributes:
        iteration: Number of the step; -1 if no step was bad, or if its gradients were no longer
            available (on an accelerator).
        elements: Number of elements.
        nans: Number of NaN elements.
        infs: Number of infinite elements.
        zeros: Number of elements that are exactly zero.
    """

    iteration: int = -1
    elements: int = 0
    nans: int = 0
    infs: int = 0
    zeros: int = 0


@dataclass(frozen=True, slots=True)
class Grown:
    """The size of a parameter before the first step, and at the first bad one.

    Attributes:
        parameter: Name of the parameter.
        before: L2 norm of the parameter before the first step.
        after: L2 norm of the parameter at the bad step.
    """

    parameter: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of the parameters until the first bad step, or until the last step if none is bad.

    Attributes:
        iteration: Number of this step; -1 if no step could be examined.
        parameters: The norms of each parameter that existed before the first step.
    """

    iteration: int = -1
    parameters: tuple[Grown, ...] = ()

    @property
    def factor(self) -> float:
        """The norm of all parameters together, after divided by before; 1 if unknown."""
        finite = [each for each in self.parameters if math.isfinite(each.after)]
        before = math.hypot(*(each.before for each in finite))
        return math.hypot(*(each.after for each in finite)) / before if before else 1.0


@dataclass(frozen=True, slots=True)
class RoundedCount:
    """Whole numbers (positions, timesteps), or angles, that a half format has rounded.

    Attributes:
        format: The half format.
        largest: The largest of the rounded numbers.
        count: Number of elements.
        distinct: Number of different values after rounding.
        changed: Number of elements that rounding changed; of angles, by half a radian or more.
        module: Path of the module that made the tensor; "" outside of modules.
        site: The line that made the tensor.
        of_waves: Whether a sine or cosine was computed from the numbers.
    """

    format: str
    largest: float
    count: int
    distinct: int
    changed: int
    module: str
    site: Site | None
    of_waves: bool = False


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A line of the loop that rounds the fp32 weights of a module to half precision, in place.

    It casts the module, which is cast back later, or loads a state in half precision into it.

    Attributes:
        kind: Class of the module.
        format: The half format.
        count: Number of such pairs of casts, or loads, of one module, the most of all modules.
        steps_before: Number of optimizer steps before the last cast back, or load.
        steps_after: Number of optimizer steps after the first cast back, or load.
        is_trained: Whether an optimizer updates parameters of the module.
        site: The line of the cast to half precision, or of the load.
        by_load: Whether it loads a state.
    """

    kind: str
    format: str
    count: int
    steps_before: int
    steps_after: int
    is_trained: bool
    site: Site | None
    by_load: bool = False


@dataclass(frozen=True, slots=True)
class HalfCast:
    """A line that casts a module to half precision, in place, without a cast back to fp32.

    Attributes:
        kind: Class of the module.
        format: The half format.
        is_trained: Whether an optimizer updates parameters of the module.
        steps_before: Number of optimizer steps before the first cast by this line.
        steps_after: Number of optimizer steps after it.
        site: The line of the cast.
        text: The statement that the line belongs to.
        overflowed: The lowest numbers of the buffers that were finite before the cast and are not
            finite after it, by name.
    """

    kind: str
    format: str
    is_trained: bool
    steps_before: int
    steps_after: int
    site: Site
    text: str
    overflowed: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnScale:
    """A loss scale in the loop's own code: a factor of the loss that decreases without a step.

    Attributes:
        first: The first value of the factor.
        last: The last value of the factor.
        rises: Number of increases.
        drops: Number of decreases without a step in between.
        steps: Number of iterations with a step since the first decrease.
        site: The line that multiplies the loss.
        undone: Number of decreases without a step since an increase, though the loss was finite,
            up to 64.
        ratios: Number of different ratios by which it changed.
    """

    first: float
    last: float
    rises: int
    drops: int
    steps: int
    site: Site | None
    undone: int = 0
    ratios: int = 0
