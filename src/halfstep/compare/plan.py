"""From what the command line says to a validated grid, before the first cell starts.

This is all that a comparison knows of configs and of the command line of `halfstep train`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.compare.grid import Cell, Grid, build_grid, parse_recipes, parse_seeds
from halfstep.errors import UserError
from halfstep.train import data, models
from halfstep.train.config_files import load, parse_options
from halfstep.train.environment import pick_device

if TYPE_CHECKING:
    from collections.abc import Sequence

_VARIED = {"recipe": "--recipes", "seed": "--seeds", "device": "--device"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison that can start.

    Attributes:
        grid: Its cells.
        directory: Where it goes.
        epochs: Passes over the training images in every cell.
    """

    grid: Grid
    directory: Path
    epochs: int


def plan(
    config: str,
    *,
    recipes: str,
    seeds: str,
    options: Sequence[str] = (),
    device: str | None = None,
    tag: str | None = None,
    out: Path | None = None,
) -> Plan:
    """Check everything that a comparison is asked for.

    Args:
        config: The name of a shipped config, or the path of a YAML file.
        recipes: Names with commas between them.
        seeds: How many, or the seeds with commas between them.
        options: Overrides "key.sub=value" of the config.
        device: Where to train; the config's own choice when not given.
        tag: Keeps this comparison apart from others of the config.
        out: The comparison's directory; made from the config's name and the tag when not given.

    Raises:
        ValueError: If anything of it is wrong, in one line.
    """
    for key, flag in _VARIED.items():
        if key in parse_options(options):
            raise UserError(
                f"--options sets {key!r}, which every cell has its own of; write {flag}"
            )
    names, numbers = parse_recipes(recipes), parse_seeds(seeds)
    first = load(config, options, {"recipe": names[0], "seed": numbers[0], "device": device})
    where = str(pick_device(first.device))
    splits = data.load(first.data)
    models.build(first.model, classes=len(splits.classes), image_shape=splits.image_shape)

    def resolve(name: str, seed: int) -> dict[str, Any]:
        found = load(config, options, {"recipe": name, "seed": seed, "device": where})
        chosen = found.build_recipe()
        settings = found.model_dump(mode="json", exclude={"description"})
        # Spelled out, so that a recipe whose meaning changed is a changed setting.
        return settings | {"recipe": {"name": chosen.name, **chosen.settings()}}

    directory = out or Path("runs") / "compare" / (
        first.name + (f"-{_checked(tag)}" if tag else "")
    )
    grid = build_grid(
        first.name,
        device=where,
        recipes=names,
        seeds=numbers,
        options=options,
        directory=directory,
        resolve=resolve,
    )
    return Plan(grid, directory, first.epochs)


def train_command(cell: Cell) -> list[str]:
    """Return the program and arguments that run a cell, from its own copy of the config."""
    return [
        *(sys.executable, "-m", "halfstep", "train", str(cell.config_file)),
        *("--recipe", cell.recipe, "--seed", str(cell.seed)),
        *("--device", str(cell.settings["device"]), "--out", str(cell.run_directory)),
    ]


def _checked(tag: str) -> str:
    if not re.fullmatch(r"[\w.+-]+", tag):
        raise UserError(f"--tag is {tag!r}; allowed: letters, digits and _ . + -, as in --tag wide")
    return tag
