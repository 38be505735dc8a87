"""What recipes would buy on GPUs that are not there: predicted times, speed-ups and memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfstep.advise.cost import step_time
from halfstep.advise.interval import around, half_width, speed_up
from halfstep.advise.memory import largest_batch, needed, usable
from halfstep.advise.step import samples, traced
from halfstep.advise.workload import Workload, workload
from halfstep.recipe import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halfstep.advise.cost import Bound
    from halfstep.advise.gpus import Gpu
    from halfstep.advise.interval import Interval
    from halfstep.advise.subject import Subject
    from halfstep.advise.trace import Trace

SHARE = 80
"""Percent of outcomes that intervals are to cover."""

GAIN = 1.05
"""The least speed-up that is called one."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is predicted of a recipe on a GPU; none of it is measured.

    Attributes:
        recipe: Its name.
        gpu: The GPU.
        batch: Samples of the step.
        seconds: Of the step.
        bound: What most of it is spent on.
        speed_up: Over the step in fp32, with products in TF32 where the GPU has that; None for that
            step itself.
        memory: Bytes of the process at the step's peak.
        largest_batch: About how many samples fit; 0 where not even one does.
        unknown: Operators whose cost is a guess from their bytes, and how many of each.
    """

    recipe: str
    gpu: Gpu
    batch: int
    seconds: Interval
    bound: Bound
    speed_up: Interval | None
    memory: int
    largest_batch: int
    unknown: dict[str, int]

    @property
    def rate(self) -> Interval:
        """Samples a second."""
        return self.seconds.inverse(self.batch)

    @property
    def fits(self) -> bool:
        """Whether the step fits into the GPU's memory."""
        return self.memory <= usable(self.gpu)

    @property
    def verdict(self) -> str:
        """What of it decides, in a few words; nothing where it is a gain."""
        said = []
        if not self.fits:
            said.append("does not fit")
        if self.speed_up is not None and self.speed_up.value < GAIN:
            said.append("no gain")
        return ", ".join(said)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data, in seconds, samples a second and bytes."""
        return {
            "recipe": self.recipe,
            "gpu": self.gpu.key,
            "batch": self.batch,
            "predicted_seconds": self.seconds.as_json(),
            "predicted_samples_per_second": self.rate.as_json(),
            "predicted_bound": self.bound,
            "predicted_speed_up": self.speed_up and self.speed_up.as_json(),
            "predicted_memory_bytes": self.memory,
            "predicted_largest_batch": self.largest_batch,
            "fits": self.fits,
            "verdict": self.verdict,
            "unknown_operators": self.unknown,
        }


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
    names = list(dict.fromkeys(find_recipe(each).name for each in recipes))
    size = batch or samples(subject.batches[0])
    pairs = {}
    for name in dict.fromkeys(["fp32", *names]):
        if name == "tf32":
            continue  # the operators are those of fp32
        tell(name)
        pairs[name] = traced(subject, name, size), traced(subject, name, 2 * size)
    found = []
    for gpu in gpus:
        reference = "tf32" if gpu.has("tf32") else "fp32"
        full = workload(pairs["fp32"][0].calls, gpu, tf32=True)
        found.append(_one(reference, gpu, pairs["fp32"], full))
        for name in names:
            if name == reference:
                continue
            pair = pairs["fp32" if name == "tf32" else name]
            tf32 = find_recipe(name).product_format == "tf32"
            here = workload(pair[0].calls, gpu, tf32=tf32)
            found.append(_one(name, gpu, pair, here, full))
    return found


def _one(
    name: str,
    gpu: Gpu,
    pair: tuple[Trace, Trace],
    work: Workload,
    full: Workload | None = None,
) -> Forecast:
    trace, _ = pair
    time = step_time(work)
    return Forecast(
        recipe=name,
        gpu=gpu,
        batch=trace.batch,
        seconds=around(time.seconds, half_width(work, gpu, SHARE)),
        bound=time.bound,
        speed_up=speed_up(full, work, gpu, SHARE) if full else None,
        memory=needed(trace),
        largest_batch=largest_batch(*pair, gpu),
        unknown=trace.unknown,
    )
