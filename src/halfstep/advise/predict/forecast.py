"""Predicted times, speed-ups and memory of recipes on GPUs that are not in this machine."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from halfstep.advise.budget import BudgetSpentError
from halfstep.advise.eps import why_unsafe
from halfstep.advise.predict.cost import step_time
from halfstep.advise.predict.interval import around, half_width, speed_up
from halfstep.advise.predict.measured import caution, corrected, every, nearest
from halfstep.advise.predict.memory import CONTEXT, largest_batch, needed, usable
from halfstep.advise.predict.step import samples, traced_at
from halfstep.advise.predict.workload import workload
from halfstep.errors import UserError
from halfstep.files import json_text
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfstep.advise.predict.cost import Bound
    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.predict.interval import Interval
    from halfstep.advise.predict.measured import Measured
    from halfstep.advise.predict.trace import Trace
    from halfstep.advise.predict.workload import Workload
    from halfstep.advise.subject import Subject
    from halfstep.recipe import Recipe

SHARE = 80
"""The coverage of the prediction intervals, in percent."""

UNSAFE = "unsafe eps"
"""The remark on a recipe whose optimizer format rounds the optimizer's eps to zero."""

GAIN = 1.05
"""The smallest ratio of times that counts as a speed-up."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predictions for a recipe on a GPU; nothing is measured.

    Attributes:
        recipe: The name of the recipe.
        gpu: The GPU.
        batch: Samples of a micro-step.
        accumulate: Micro-steps per step.
        seconds: Time of a step.
        bound: What limits the step most.
        speed_up: Speed-up over the step in fp32, with products in TF32 if the GPU supports TF32;
            None for that step itself.
        memory: Bytes of the process at the peak of the step.
        limit: Bytes that the process may use.
        largest_batch: Estimated largest number of samples of a micro-step that fits; 0 if no sample
            fits, None if it was not requested.
        unknown: Number of calls of each operator whose cost is estimated only from its bytes.
        measured: The device whose measured operators correct the times; "" without them.
        caution: What is not known of the GPU; "" if operators of its architecture were measured.
        busy_batch: If the host limits the step, the estimated number of samples of a micro-step
            from which on the GPU does; None if it limits this step, or if it was not estimated.
        lacks: The format of the recipe's products if the GPU has no units for it, else "".
        unsafe: Why the recipe is unsafe with the optimizer for every model; "" if it is not.
    """

    recipe: str
    gpu: Gpu
    batch: int
    accumulate: int
    seconds: Interval
    bound: Bound
    speed_up: Interval | None
    memory: int
    limit: int
    largest_batch: int | None
    unknown: dict[str, int]
    measured: str = ""
    caution: str = ""
    busy_batch: int | None = None
    lacks: str = ""
    unsafe: str = ""

    @property
    def samples(self) -> str:
        """Samples of a step, as text."""
        return f"{self.accumulate} x {self.batch}" if self.accumulate > 1 else str(self.batch)

    @property
    def rate(self) -> Interval:
        """Samples per second."""
        return self.seconds.inverse(self.batch * self.accumulate)

    @property
    def fits(self) -> bool:
        """Whether the memory of the step is within the limit."""
        return self.memory <= self.limit

    @property
    def verdict(self) -> str:
        """The reasons against the recipe in a few words; "" if there are none."""
        said = [f"no {self.lacks} units"] if self.lacks else []
        if not self.fits:
            said.append("does not fit")
        if not self.lacks and self.speed_up is not None and self.speed_up.value < GAIN:
            said.append("no gain")
        return ", ".join(said)

    @property
    def remarks(self) -> list[str]:
        """What limits the step most, if that is known, then the verdict and `UNSAFE`."""
        known = [] if self.lacks else [self.bound]
        flaw = [UNSAFE] if self.unsafe else []
        return [*known, *filter(None, self.verdict.split(", ")), *flaw]

    def as_json(self) -> dict[str, Any]:
        """Return the forecast as plain data, in seconds, samples per second and bytes.

        Times are None if the GPU has no units for the format, because the constants are not fitted
        to such products.
        """
        timed = not self.lacks
        return {
            "recipe": self.recipe,
            "gpu": self.gpu.key,
            "batch": self.batch,
            "accumulate": self.accumulate,
            "predicted_seconds": self.seconds.as_json() if timed else None,
            "predicted_samples_per_second": self.rate.as_json() if timed else None,
            "predicted_bound": self.bound if timed else None,
            "predicted_speed_up": self.speed_up.as_json() if self.speed_up and timed else None,
            "predicted_memory_bytes": self.memory,
            "predicted_largest_batch": self.largest_batch,
            "fits": self.fits,
            "verdict": self.verdict,
            "measured_operators": self.measured,
            "unsafe": self.unsafe,
            "unknown_operators": self.unknown,
        }


class Forecaster:
    """Predicts steps of a subject; a trace is reused for all GPUs.

    Args:
        subject: The subject; it is not modified.
        batch: Samples of a micro-step; by default those of the subject, or of its first batch.
        memory: Bytes that a step may use; by default the usable memory of the GPU.
        largest: Whether to estimate the largest batch that fits, which needs a second trace.
        tell: Called with a description of the next trace.
        check: Called before each operator of a trace; raises `BudgetSpentError` to end it.
        measured: Measured operators; by default those of the user's files and of the shipped ones.

    Attributes:
        tell: The argument `tell`; may be replaced.
        check: The argument `check`; may be replaced.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        batch: int | None = None,
        memory: float | None = None,
        largest: bool = True,
        tell: Callable[[str], None] = lambda _: None,
        check: Callable[[], None] = lambda: None,
        measured: Sequence[Measured] | None = None,
    ) -> None:
        self._subject = subject
        self._batch = batch or subject.batch_size or samples(subject.batches[0])
        self._memory = memory
        self._largest = largest
        self.tell = tell
        self.check = check
        self._optimizer = subject.optimizer(subject.model)
        self._measured = every() if measured is None else measured
        self._traces: dict[str, tuple[Trace, ...]] = {}

    def reference(self, gpu: Gpu) -> Forecast:
        """Predict the reference of speed-ups: fp32, with products in TF32 if the GPU supports it.

        Raises:
            UserError: If a step cannot be traced.
        """
        traces = self._traced(find_recipe("fp32"))
        works = [self._work(trace, gpu, tf32=True) for trace in traces]
        found = self._one(gpu.reference, gpu, traces, works[0], None)
        return replace(found, busy_batch=_busy_batch(traces, works))

    def predict(self, recipe: Recipe, gpu: Gpu) -> Forecast:
        """Predict a step under a recipe.

        Raises:
            UserError: If a step cannot be traced, or if a trace does not tell the cost on the GPU.
        """
        if reason := recipe.untraceable_on(gpu):
            raise UserError(
                f"the cost of {recipe.name} on {gpu.name} cannot be predicted: {reason}; leave "
                f"{recipe.name} out of --recipes"
            )
        traces = self._traced(recipe, gpu)
        work = self._work(traces[0], gpu, tf32=recipe.product_format == "tf32")
        found = self._one(recipe.name, gpu, traces, work, self._full(gpu))
        lacks = "" if gpu.has(recipe.product_format) else recipe.product_format
        unsafe = why_unsafe(self._optimizer, recipe)
        return replace(found, lacks=lacks, unsafe=unsafe)

    def trace(self, recipe: Recipe, gpu: Gpu | None = None) -> Trace:
        """Return the trace of a step under a recipe, on a GPU if the recipe is in FP8.

        Raises:
            UserError: If a step cannot be traced.
        """
        return self._traced(recipe, gpu)[0]

    def in_time(self, recipes: Iterable[tuple[Recipe, Sequence[Gpu]]]) -> set[str]:
        """Trace recipes for GPUs until the budget is spent, and return the names of those traced.

        Raises:
            UserError: If a step cannot be traced, or if there is no time even for fp32.
        """
        names: set[str] = set()
        try:
            self._traced(find_recipe("fp32"))
        except BudgetSpentError:
            raise UserError(
                f"the budget was spent before one step of {self._subject.name} was traced, so no "
                "cost can be predicted; give more, such as --budget 10m"
            ) from None
        with suppress(BudgetSpentError):
            for recipe, gpus in recipes:
                for gpu in gpus:
                    self._traced(recipe, gpu)
                names.add(recipe.name)
        return names

    def _full(self, gpu: Gpu) -> Workload:
        return self._work(self._traced(find_recipe("fp32"))[0], gpu, tf32=True)

    def _work(self, trace: Trace, gpu: Gpu, *, tf32: bool) -> Workload:
        work, near = workload(trace.calls, gpu, tf32=tf32), nearest(self._measured, gpu)
        return corrected(work, trace.calls, gpu, near, tf32=tf32) if near else work

    def _traced(self, recipe: Recipe, gpu: Gpu | None = None) -> tuple[Trace, ...]:
        if recipe == find_recipe("tf32"):  # runs the same operators as fp32
            recipe = find_recipe("fp32")
        # The value of the loss scale does not affect the cost.
        scaling = recipe.scaling and replace(recipe.scaling, init=1.0)
        if not recipe.untraceable:  # every GPU runs the same operators
            gpu = None
        key = json_text({**recipe.settings(), "loss_scale": repr(scaling), "gpu": repr(gpu)})
        if key not in self._traces:
            fp32 = recipe == find_recipe("fp32")
            self.tell(f"cost of {'fp32 and tf32' if fp32 else recipe.name}")
            sizes = (self._batch, 2 * self._batch) if self._largest else (self._batch,)
            self._traces[key] = traced_at(self._subject, recipe, sizes, gpu=gpu, check=self.check)
        return self._traces[key]

    def _one(
        self,
        name: str,
        gpu: Gpu,
        traces: tuple[Trace, ...],
        work: Workload,
        full: Workload | None,
    ) -> Forecast:
        time = step_time(work)
        near = nearest(self._measured, gpu)
        limit = usable(gpu) if self._memory is None else round(min(usable(gpu), self._memory))
        return Forecast(
            recipe=name,
            gpu=gpu,
            batch=traces[0].batch,
            accumulate=self._subject.accumulate,
            seconds=around(time.seconds, half_width(work, gpu, SHARE)),
            bound=time.bound,
            speed_up=speed_up(full, work, gpu, SHARE) if full else None,
            memory=needed(traces[0]),
            limit=limit,
            largest_batch=largest_batch(traces[0], traces[1], limit) if self._largest else None,
            unknown=traces[0].unknown,
            measured=near.device if near else "",
            caution=caution(near, gpu),
        )


def _busy_batch(traces: Sequence[Trace], works: Sequence[Workload]) -> int | None:
    """Estimate the batch from which on kernels take longer than their launches, linearly."""
    times = [step_time(work) for work in works]
    if times[0].bound != "host" or len(times) == 1:
        return None
    (small, large), (first, second) = times, (trace.batch for trace in traces)
    each = (large.device - small.device) / (second - first)
    return first + math.ceil((small.host - small.device) / each) if each > 0 else None


def forecast(
    subject: Subject,
    recipes: Sequence[str],
    gpus: Sequence[Gpu],
    *,
    batch: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Forecast]:
    """Predict a step under recipes on GPUs; the first forecast of each GPU is the reference.

    Args:
        subject: The subject; it is not modified.
        recipes: Names of recipes, or names joined by "+".
        gpus: The GPUs.
        batch: Samples of a micro-step; by default as many as in the subject's first batch.
        tell: Called with a description of the next trace.

    Raises:
        ValueError: If a recipe is unknown, or a step cannot be traced.
    """
    return forecasts(Forecaster(subject, batch=batch, tell=tell), recipes, gpus)


def forecasts(
    forecaster: Forecaster, recipes: Sequence[str], gpus: Sequence[Gpu], *, partly: bool = False
) -> list[Forecast]:
    """Predict a step under recipes on GPUs; the first forecast of each GPU is the reference.

    Args:
        forecaster: Predicts steps of the subject.
        recipes: Names of recipes, or names joined by "+".
        gpus: The GPUs.
        partly: Whether to omit recipes that a trace tells nothing of on any GPU, rather than raise.
            Where a trace tells nothing on some GPUs, these are always left out.

    Returns:
        The forecasts; those of recipes are missing that were not traced when the budget was spent.

    Raises:
        ValueError: If a recipe is unknown, or a step cannot be traced.
    """
    wanted = {
        name: (found, [gpu for gpu in gpus if not found.untraceable_on(gpu)])
        for name, found in ((found.name, found) for found in map(find_recipe, recipes))
    }
    for found, there in wanted.values():
        if not there and not partly:
            forecaster.predict(found, gpus[0])  # raises the reason
    traced = forecaster.in_time(wanted.values())
    made = []
    for gpu in gpus:
        reference = forecaster.reference(gpu)
        made.append(reference)
        made += [
            forecaster.predict(recipe, gpu)
            for name, (recipe, there) in wanted.items()
            if name in traced and gpu in there and name != reference.recipe
        ]
    return made


def none_fits(reference: Forecast) -> str:
    """Return a message that no recipe fits into memory, with a remedy."""
    if reference.limit <= CONTEXT:
        return (
            f"no recipe fits into {reference.limit / 2**30:.1f} GiB: PyTorch alone takes about "
            f"{CONTEXT / 2**30:.0f} GiB; raise --max-memory"
        )
    return "no recipe fits into memory; use a smaller batch"
