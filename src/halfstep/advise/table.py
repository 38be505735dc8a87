"""Prints predictions on a terminal: a table for each GPU, with a row for each recipe."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from halfstep.advise import unscaled
from halfstep.advise.predict.forecast import GAIN, SHARE, UNSAFE, none_fits
from halfstep.show import units
from halfstep.show.text import print_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from halfstep.advise.predict.forecast import Forecast
    from halfstep.advise.predict.interval import Interval

_NOTE = (
    "All figures are predicted from the operators of one step and the GPU's datasheet; nothing was "
    "run on the GPU. {intervals}. GiB includes 1 GiB that PyTorch takes on any GPU."
)
_REMARKS = {
    "compute": "compute: most of the step is arithmetic.",
    "bandwidth": "bandwidth: most of the step is spent on reading and writing the GPU's memory.",
    "host": "host: the CPU takes longer to launch the kernels than the GPU to run them; a larger "
    "batch makes better use of the GPU.",
    "launches": "launches: most of the step is the fixed time of each kernel, and loss scaling, "
    "casts and checks add kernels.",
    "no gain": f"no gain: less than {GAIN:g} times as fast as {{over}}.",
}
TRIED_NEXT = (
    "This table shows only the predicted cost. advise now examines which recipes are safe for the "
    "model, in up to 60 forward and backward passes on this machine."
)
CHANGED = (
    "This table shows only the recipes whose cost has changed because layers stay in fp32. For "
    "the cost of the other recipes, see the first table."
)
MARKED = (
    "* after a recipe's name: with the exceptions (layers in fp32) and the loss scale that the "
    "model needs."
)
_COLUMNS = (
    "recipe",
    "ms/step",
    "samples\n/s",
    "speed-up\nover {over}",
    "GiB",
    "largest\nbatch",
    "bound by,\nremark",
)
_OF_TEXT = (_COLUMNS[0], _COLUMNS[-1])
_MANY = 100_000
"""Batch size above which the table does not show the exact number: nobody trains with so many
samples, and the number would widen the table."""


def show(console: Console, subject: str, found: Sequence[Forecast], *notes: str) -> None:
    """Print forecasts, a table for each GPU; every title says that they are predicted.

    Args:
        console: The terminal.
        subject: The name of the subject.
        found: The forecasts.
        notes: Lines to print below; if `CHANGED` is among them, the figures are not explained
            again.
    """
    for gpu, rows in groupby(found, key=lambda each: each.gpu):
        title = f"{subject} on {gpu.name}, {found[0].samples} samples a step: predicted"
        table = Table(
            title=title,
            box=SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0),
            title_justify="left",
        )
        for column in (each.format(over=gpu.reference) for each in _COLUMNS):
            justify: Literal["left", "right"] = "left" if column in _OF_TEXT else "right"
            table.add_column(column, justify=justify, no_wrap=True)
        for each in rows:
            table.add_row(
                each.recipe,
                *_times(each),
                f"{each.memory / 2**30:.1f}",
                largest_batch(each),
                "\n".join(each.remarks),
            )
        table.width = console.measure(table, options=console.options.update(width=10_000)).maximum
        console.print(table, crop=False, no_wrap=True)  # rather too wide than cut
        console.print()
    for line in notes if CHANGED in notes else (*_explained(found), *notes):
        print_text(console, line)
    if any(each.recipe.endswith("*") for each in found):
        print_text(console, MARKED)
    for flaw in dict.fromkeys(each.unsafe for each in found if each.unsafe):
        print_text(console, f"{UNSAFE}: {flaw}")
    guessed = {name: count for each in found for name, count in each.unknown.items()}
    for name, count in sorted(guessed.items()):
        print_text(
            console,
            f"{name} ({count} in a step): unknown operator; its time is estimated only from its "
            "memory traffic",
        )


def _explained(found: Sequence[Forecast]) -> list[str]:
    """Say what the figures and remarks of the tables mean."""
    over = " or ".join(dict.fromkeys(each.gpu.reference for each in found))
    used = [said for name, said in _REMARKS.items() if any(name in e.remarks for e in found)]
    note = _NOTE.format(intervals=intervals(found, "low, high"))
    near = dict.fromkeys((each.gpu.name, each.measured) for each in found if each.measured)
    measured = [f"{gpu}: from operators that were measured on {device}" for gpu, device in near]
    return [note, *measured, *cautions(found), *(each.format(over=over) for each in used)]


def intervals(found: Sequence[Forecast], ends: str = " ") -> str:
    """Say how many of the intervals should contain the true value.

    Args:
        found: The forecasts.
        ends: What stands between the brackets.
    """
    inexact = dict.fromkeys(each.gpu.name for each in found if each.caution)
    fewer = f", but fewer may on {' and '.join(inexact)} (see below)" if inexact else ""
    return f"{SHARE} % of the intervals [{ends}] should contain the true value{fewer}"


def cautions(found: Sequence[Forecast]) -> list[str]:
    """Say once, for all GPUs that it applies to, what is not known of their architectures."""
    names: dict[str, dict[str, None]] = {}
    for each in found:
        if each.caution:
            names.setdefault(each.caution, {})[each.gpu.name] = None
    return [f"{', '.join(each)}: {caution}" for caution, each in names.items()]


def fastest(found: Sequence[Forecast], examine: str) -> tuple[list[str], str]:
    """Say for each GPU which recipe is predicted to be fastest, and once that safety is not known.

    Args:
        found: The forecasts; the first one of each GPU is fp32 or tf32.
        examine: The command that examines the safety, without its GPUs; "" if there is none.

    Returns:
        The sentences, and the command for the GPUs with enough memory; "" if there is none.
    """
    said: list[str] = []
    useful: list[str] = []
    named: list[str] = []
    for gpu, rows in groupby(found, key=lambda each: each.gpu):
        reference, *others = rows
        fitting = [each for each in others if each.fits and not (each.lacks or each.unsafe)]
        best = min(fitting, key=lambda each: each.seconds.value, default=reference)
        if reference.fits and best.seconds.value * GAIN > reference.seconds.value:
            said.append(
                f"on {gpu.name}: no recipe that fits is predicted to be at least {GAIN:g} times as "
                f"fast as {reference.recipe}"
            )
        elif best is reference:
            said.append(f"on {gpu.name}: {none_fits(reference)}")
            continue
        else:
            assert best.speed_up is not None
            low, value, high = map(units.ratio, best.speed_up)
            alike = [
                each.recipe
                for each in fitting
                if each is not best and each.seconds.value <= GAIN * best.seconds.value
            ]
            more = f" (about as fast: {', '.join(alike)})" if alike else ""
            named += [best.recipe, *alike]
            said.append(
                f"on {gpu.name}: {best.recipe} is predicted to be the fastest recipe that fits, "
                f"{value} [{low}, {high}] times as fast as {reference.recipe}{more}"
            )
        useful.append(gpu.key)
    said += unscaled.lines(named)
    if useful and examine:
        said.append("which recipes are safe for the model was not examined; to examine it:")
        return said, f"{examine} --gpu {','.join(useful)}"
    if useful:
        said.append("which recipes are safe for the model was not examined, which needs its data")
    return said, ""


def changed(found: Sequence[Forecast], shown: Sequence[Forecast]) -> list[Forecast]:
    """Return the forecasts that differ from those shown in more than the "*" after the recipe."""
    return [each for each in found if replace(each, recipe=each.recipe.rstrip("*")) not in shown]


def _times(found: Forecast) -> tuple[str, str, str]:
    """Format time, rate and speed-up; all are unknown if the GPU lacks units for the format."""
    if found.lacks:
        return units.MISSING, units.MISSING, units.MISSING
    return (
        _interval(found.seconds, units.predicted_milliseconds),
        units.two_digits(found.rate.value),
        _interval(found.speed_up, units.ratio) if found.speed_up else "1",
    )


def _interval(given: Interval, write: Callable[[float], str]) -> str:
    low, value, high = map(write, given)
    return f"{value} \\[{low}, {high}]"


def largest_batch(found: Forecast, mark: str = "") -> str:
    """Format the estimated largest batch, with a mark before the number."""
    batch = found.largest_batch
    if batch is None:
        return units.MISSING
    if batch > _MANY:
        return f">{mark}{_MANY:,}"
    return mark + units.two_digits(batch) if batch else "none"
