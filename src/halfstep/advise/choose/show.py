"""Prints what is advised on a terminal: a row a recipe, the reasons, and what to write."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from halfstep.advise.choose.advice import NOT_EXAMINED
from halfstep.plurals import counted
from halfstep.show import units
from halfstep.train.config import text

if TYPE_CHECKING:
    from rich.console import Console

    from halfstep.advise.answer import Answer
    from halfstep.advise.choose.advice import Advice
    from halfstep.advise.choose.solve import Choice
    from halfstep.advise.choose.trial import Trial

LITTLE_HEADROOM = 2
"""Bits below which training may soon overflow where it does not yet."""
ROUNDING = (
    "rounding error: squared error of the gradient, as a share of its variance between batches"
)
SETTLED = {"good": "as fp32", "bad": "worse than fp32", "open": "not settled"}


def show(console: Console, found: Answer) -> None:
    """Print what a model survives under each recipe, and why not more."""
    advice = found.advice
    assert advice is not None
    console.print(
        f"{advice.subject}: {counted(advice.recorded.steps, 'step')} in fp32; {noise(advice)}",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for header in ("recipe", "survives", "in fp32", "rounding\nerror", "first loss\nscale"):
        table.add_column(header, justify="right" if "\n" in header else "left")
    table.add_column("headroom")
    for trial in advice.trials:
        table.add_row(trial.base, *_cells(trial))
    for name in advice.unexamined:
        table.add_row(name, "not examined")
    console.print(table)
    console.print(ROUNDING, soft_wrap=True)
    for trial in advice.trials:
        for line in reasons(trial, advice.later.get(trial.base, "")):
            console.print(f"{trial.base}: {line}", soft_wrap=True, markup=False, highlight=False)


def noise(advice: Advice) -> str:
    """Say how much gradients differ between batches."""
    ratio = f"{advice.recorded.noise_ratio:.2g}"
    return f"the gradient's standard deviation between batches is {ratio} times its norm"


def conclude(console: Console, found: Answer, more: str = "") -> None:
    """Print the safe recipes and that of each GPU, whether it is verified, and what to write.

    Args:
        console: Where.
        found: The answer.
        more: What to write for the recipes that were not examined, said after their names.
    """
    if line := assumed(found):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    if found.advice:
        names = ", ".join(trial.base for trial in found.advice.safe)
        survives = f"survives: {names}" if names else none_survives(found.advice)
        console.print(Text(survives, style="bold"), soft_wrap=True)
    if line := not_examined(found):
        console.print(f"{line}; {more}", soft_wrap=True, markup=False, highlight=False)
    for choice in found.choices:
        console.print(Text(chosen(choice, found.advice), style="bold"), soft_wrap=True)
        for recipe, reason in choice.left.items():
            if recipe not in found.unexamined and not _is_rejected(found.advice, recipe):
                console.print(f"  not {recipe}: {reason}", soft_wrap=True, markup=False)
    for name, each in found.verified.items():
        said = f"{name} in short trainings: {SETTLED[each.settled]}; {each.said}"
        console.print(said, soft_wrap=True, markup=False, highlight=False)
    trials = found.recommended if found.choices else found.advice_with_exceptions
    for trial in trials:
        console.print(Text(f"# {trial.base}, in a config:", style="dim"))
        console.print(Text(text.dump({"recipe": trial.spec}).rstrip()), soft_wrap=True)


def chosen(choice: Choice, advice: Advice | None) -> str:
    """Say in a line what to train under on a GPU, what is predicted of it, and what to mind."""
    where = f"on {choice.gpu.name}"
    best = choice.best
    if best is None and not choice.reference_fits:
        return f"{where}: nothing fits; take a smaller batch"
    if best is None:
        waits = choice.reference.bound == "host"
        hint = "; kernel launches take longer than the kernels, so try a larger --batch-size"
        return (
            f"{where}: stay with {choice.reference.recipe}; no {_others(advice)} is predicted to "
            f"be better{hint if waits else ''}"
        )
    cost, speed_up = best.cost, best.cost.speed_up
    assert speed_up is not None
    exceptions = len(best.trial.exceptions)
    beside = f" with {counted(exceptions, 'exception')}" if exceptions else ""
    low, value, high = map(units.ratio, speed_up)
    later = advice.later.get(best.trial.base) if advice else None
    others = ", ".join(each.trial.base for each in choice.as_fast)
    alike = f"; about as fast: {others}" if others else ""
    return (
        f"{where}: {best.trial.base}{beside}, predicted {value} [{low}, {high}] times as fast as "
        f"{choice.reference.recipe}, {cost.memory / 2**30:.1f} of {choice.limit / 2**30:.1f} GiB"
        f"{f'; but {later}' if later else ''}{alike}"
    )


def none_survives(advice: Advice) -> str:
    """Say that no recipe is safe, of those of which that is known."""
    if advice.unexamined:
        return "none of the examined recipes survives; train in fp32 or tf32 until the others are"
    return "none of these recipes survives; train in fp32 or tf32"


def assumed(found: Answer) -> str:
    """Say which optimizer of a model from a function the answer depends on; "" for a config."""
    settings = found.subject.assumed
    if not settings:
        return ""
    given = f"assuming {settings['name']} with a learning rate of {settings['lr']:g}"
    if not found.advice:
        return (
            f"{given}; time and memory depend on the optimizer, so write --optimizer as in "
            "your training"
        )
    return (
        f"{given}; the safe recipes depend on both, so write --optimizer and --lr as in your "
        "training"
    )


def not_examined(found: Answer) -> str:
    """Say which recipes the time budget left out; "" for none."""
    names = ", ".join(found.unexamined)
    why = "" if found.advice else ", which does not suffice for the recorded steps in fp32"
    return names and f"{NOT_EXAMINED}{why}: {names}"


def _others(advice: Advice | None) -> str:
    return "examined recipe" if advice and advice.unexamined else "other recipe"


def _is_rejected(advice: Advice | None, recipe: str) -> bool:
    return advice is None or bool(advice.trial(recipe).rejected)


def _cells(trial: Trial) -> list[str]:
    damage = math.inf if trial.rehearsal is None else trial.rehearsal.gradient_damage
    scaling = trial.recipe.scaling
    bits, at = trial.headroom
    return [
        "no" if trial.rejected else "yes",
        "\n".join(map(_module, trial.exceptions)) if not trial.rejected else "",
        units.small_share(damage) if math.isfinite(damage) else "",
        f"{scaling.init:g}" if scaling else "",
        f"{bits:.0f} bits in {at}" if math.isfinite(bits) and not trial.rejected else "",
    ]


def _module(name: str) -> str:
    """Write a module's name so that one like "1.0" is not read as a number."""
    return name if any(each.isalpha() for each in name) else f"module {name}"


def reasons(trial: Trial, later: str) -> list[str]:
    """Say why a recipe is rejected, or what of it has to be fp32 and what to look out for."""
    if trial.rejected:
        return [f"rejected: {trial.rejected}"]
    said = []
    for pattern, reason in trial.exceptions.items():
        file, _, number = trial.lines.get(pattern, "").rpartition(":")
        where = f" ({Path(file).name}:{number})" if file else ""
        said.append(f"{_module(pattern)}{where}: {reason}")
    if trial.headroom[0] < LITTLE_HEADROOM:
        bits, at = trial.headroom
        said.append(f"{at} is {bits:.0f} bits from overflow; run advise again later in training")
    return [*said, later] if later else said
