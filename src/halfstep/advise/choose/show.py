"""Prints what is advised on a terminal: a row a recipe, the reasons, and what to write."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from halfstep.train.config import text

if TYPE_CHECKING:
    from rich.console import Console

    from halfstep.advise.choose.advice import Advice
    from halfstep.advise.choose.survive import Trial

LITTLE_HEADROOM = 2
"""Bits below which training may soon overflow where it does not yet."""


def show(console: Console, advice: Advice) -> None:
    """Print advice; the last lines are what to write."""
    console.print(
        f"{advice.subject}: {advice.recorded.steps} steps in fp32; the gradient's noise from batch "
        f"to batch is {advice.recorded.noise_ratio:.2g} of its norm",
        soft_wrap=True,
    )
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for header in ("recipe", "survives", "in fp32", "rounding, of\nthe noise", "first loss\nscale"):
        table.add_column(header, justify="right" if "\n" in header else "left")
    table.add_column("headroom")
    for trial in advice.trials:
        table.add_row(trial.base, *_cells(trial))
    console.print(table)
    for trial in advice.trials:
        _reasons(console, trial)
    needed = [trial for trial in advice.safe if len(trial.spec) > 1]
    if advice.safe:
        names = ", ".join(trial.base for trial in advice.safe)
        console.print(Text(f"survives: {names}", style="bold"), soft_wrap=True)
    else:
        console.print(Text("none of these recipes; train in fp32 or tf32", style="bold"))
    for trial in needed:
        console.print(Text(f"# {trial.base}, in a config:", style="dim"))
        console.print(Text(text.dump({"recipe": trial.spec}).rstrip()), soft_wrap=True)


def _cells(trial: Trial) -> list[str]:
    damage = math.inf if trial.rehearsal is None else trial.rehearsal.gradient_damage
    scaling = trial.recipe.scaling
    bits, at = trial.headroom
    return [
        "no" if trial.rejected else "yes",
        "\n".join(trial.exceptions) if not trial.rejected else "",
        f"{damage:.1%}" if math.isfinite(damage) else "",
        f"{scaling.init:g}" if scaling else "",
        f"{bits:.0f} bits, {at}" if math.isfinite(bits) and not trial.rejected else "",
    ]


def _reasons(console: Console, trial: Trial) -> None:
    if trial.rejected:
        console.print(f"{trial.base}: {trial.rejected}", soft_wrap=True, highlight=False)
        return
    for pattern, reason in trial.exceptions.items():
        file, _, number = trial.lines[pattern].rpartition(":")
        where = f" ({Path(file).name}:{number})" if file else ""
        console.print(f"{trial.base}: {pattern}{where}: {reason}", soft_wrap=True, highlight=False)
    if trial.headroom[0] < LITTLE_HEADROOM:
        console.print(
            f"{trial.base}: {trial.headroom[1]} is {trial.headroom[0]:.0f} bits from overflow; ask "
            "again later in training",
            soft_wrap=True,
            highlight=False,
        )
