"""What recipes would buy on GPUs that are not there: predicted times, speed-ups and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from halfstep.advise.cost import step_time
from halfstep.advise.eps import zero_eps
from halfstep.advise.interval import around, half_width, speed_up
from halfstep.advise.memory import CONTEXT, largest_batch, needed, usable
from halfstep.advise.step import samples, traced_at
from halfstep.advise.workload import workload
from halfstep.files import json_text
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.advise.cost import Bound
    from halfstep.advise.gpus import Gpu
    from halfstep.advise.interval import Interval
    from halfstep.advise.subject import Subject
    from halfstep.advise.trace import Trace
    from halfstep.advise.workload import Workload
    from halfstep.recipe import Recipe

SHARE = 80
"""Percent of outcomes that intervals are to cover."""

UNSAFE = "unsafe eps"
"""The remark on a recipe under which the optimizer's eps is zero."""

GAIN = 1.05
"""The least speed-up that is called one."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is predicted of a recipe on a GPU; none of it is measured.

    Attributes:
        recipe: Its name.
        gpu: The GPU.
        batch: Samples of a micro-step.
        accumulate: Micro-steps to a step.
        seconds: Of the step.
        bound: What most of it is spent on.
        speed_up: Over the step in fp32, with products in TF32 where the GPU has that; None for that
            step itself.
        memory: Bytes of the process at the step's peak.
        limit: Bytes that it may take.
        largest_batch: About how many samples of a micro-step fit; 0 where not even one does, None
            where nobody asked.
        unknown: Operators whose cost is a guess from their bytes, and how many of each.
        lacks: The format of the recipe's products where the GPU has no units for it.
        unsafe: Why the recipe is unsafe with the optimizer, whatever the model; "" if it is not.
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
    lacks: str = ""
    unsafe: str = ""

    @property
    def samples(self) -> str:
        """Samples of a step, in print."""
        return f"{self.accumulate} x {self.batch}" if self.accumulate > 1 else str(self.batch)

    @property
    def rate(self) -> Interval:
        """Samples a second."""
        return self.seconds.inverse(self.batch * self.accumulate)

    @property
    def fits(self) -> bool:
        """Whether the step takes no more memory than it may."""
        return self.memory <= self.limit

    @property
    def verdict(self) -> str:
        """What of it decides, in a few words; nothing where it is a gain."""
        said = [f"no {self.lacks} units"] if self.lacks else []
        if not self.fits:
            said.append("does not fit")
        if not self.lacks and self.speed_up is not None and self.speed_up.value < GAIN:
            said.append("no gain")
        return ", ".join(said)

    @property
    def remarks(self) -> list[str]:
        """What the step spends most of its time on if that is known, and the verdict."""
        known = [] if self.lacks else [self.bound]
        flaw = [UNSAFE] if self.unsafe else []
        return [*known, *filter(None, self.verdict.split(", ")), *flaw]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, in seconds, samples a second and bytes.

        Times are None where the GPU has no units for the format: the constants are not fitted to
        such products.
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
            "unsafe": self.unsafe,
            "unknown_operators": self.unknown,
        }


class Forecaster:
    """Predicts steps of a subject; what was traced for one GPU serves the others.

    Args:
        subject: What is trained; it is left as it is.
        batch: Samples of a micro-step; those of the subject's first batch by default.
        memory: Bytes that a step may take; what the GPU has by default.
        largest: Whether to look for the largest batch that fits, which takes a second trace.
        tell: Is told the recipe that is traced next.

    Attributes:
        tell: The same; may be changed.
    """

    def __init__(
        self,
        subject: Subject,
        *,
        batch: int | None = None,
        memory: float | None = None,
        largest: bool = True,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._subject = subject
        self._batch = batch or samples(subject.batches[0])
        self._memory = memory
        self._largest = largest
        self.tell = tell
        self._optimizer = subject.optimizer(subject.model)
        self._traces: dict[str, tuple[Trace, ...]] = {}

    def reference(self, gpu: Gpu) -> Forecast:
        """Predict what others are held to: fp32, with products in TF32 where the GPU has that.

        Raises:
            UserError: If a step cannot be traced.
        """
        name = "tf32" if gpu.has("tf32") else "fp32"
        return self._one(name, gpu, self._traced(find_recipe("fp32")), self._full(gpu), None)

    def predict(self, recipe: Recipe, gpu: Gpu) -> Forecast:
        """Predict a step under a recipe.

        Raises:
            UserError: If a step cannot be traced.
        """
        traces = self._traced(recipe)
        work = workload(traces[0].calls, gpu, tf32=recipe.product_format == "tf32")
        found = self._one(recipe.name, gpu, traces, work, self._full(gpu))
        lacks = "" if gpu.has(recipe.product_format) else recipe.product_format
        unsafe = zero_eps(self._optimizer, recipe.optimizer_format)
        return replace(found, lacks=lacks, unsafe=unsafe)

    def _full(self, gpu: Gpu) -> Workload:
        return workload(self._traced(find_recipe("fp32"))[0].calls, gpu, tf32=True)

    def _traced(self, recipe: Recipe) -> tuple[Trace, ...]:
        if recipe == find_recipe("tf32"):  # the operators are those of fp32
            recipe = find_recipe("fp32")
        scaling = recipe.scaling and replace(recipe.scaling, init=1.0)  # whose size costs nothing
        key = json_text({**recipe.settings(), "loss_scale": repr(scaling)})
        if key not in self._traces:
            self.tell(f"cost of {recipe.name}")
            sizes = (self._batch, 2 * self._batch) if self._largest else (self._batch,)
            self._traces[key] = traced_at(self._subject, recipe, sizes)
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
        )


def forecast(
    subject: Subject,
    recipes: Sequence[str],
    gpus: Sequence[Gpu],
    *,
    batch: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Forecast]:
    """Predict a step under recipes on GPUs; first on each is fp32, which others are held to.

    Args:
        subject: What is trained; it is left as it is.
        recipes: Names, or names joined by "+".
        gpus: Where.
        batch: Samples of the step; those of the subject's first batch by default.
        tell: Is told the recipe that is traced next.

    Raises:
        ValueError: If a recipe is unknown, or a step cannot be traced.
    """
    return forecasts(Forecaster(subject, batch=batch, tell=tell), recipes, gpus)


def forecasts(
    forecaster: Forecaster, recipes: Sequence[str], gpus: Sequence[Gpu], *, partly: bool = False
) -> list[Forecast]:
    """Predict a step under recipes on GPUs; first on each is fp32, which others are held to.

    Args:
        forecaster: Predicts steps of what is trained.
        recipes: Names, or names joined by "+".
        gpus: Where.
        partly: Whether to leave out recipes that a CPU cannot trace, rather than raise.

    Raises:
        ValueError: If a recipe is unknown, or a step cannot be traced.
    """
    wanted = {found.name: found for found in map(find_recipe, recipes)}
    if partly:
        wanted = {name: found for name, found in wanted.items() if not found.untraceable}
    made = []
    for gpu in gpus:
        reference = forecaster.reference(gpu)
        made.append(reference)
        made += [
            forecaster.predict(recipe, gpu)
            for name, recipe in wanted.items()
            if name != reference.recipe
        ]
    return made


def none_fits(reference: Forecast) -> str:
    """Say that no recipe fits, and what would help."""
    if reference.limit <= CONTEXT:
        return (
            f"no recipe fits into {reference.limit / 2**30:.1f} GiB: PyTorch alone takes about "
            f"{CONTEXT / 2**30:.0f} GiB; raise --max-memory"
        )
    return "no recipe fits into memory; take a smaller batch"
