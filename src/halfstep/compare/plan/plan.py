"""Turns the arguments of the command line into a validated plan, before the first cell starts.

Only this file of `compare` loads configs, and knows the command line of `halfstep train`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from halfstep.compare.plan.arguments import (
    SEEDS,
    parse_axes,
    parse_devices,
    parse_looks,
    parse_margin,
    parse_seeds,
    parse_time_limit,
    refuse_too_many,
)
from halfstep.compare.plan.checks import CONTROL, OTHER_SEEDS, checks_of
from halfstep.compare.plan.grid import MARGIN, PROCESSES, Arm, Plan, build_grid
from halfstep.compare.plan.refusals import refuse
from halfstep.compare.plan.slots import at_once, deal_out, refuse_too_few
from halfstep.errors import UserError
from halfstep.recipe import recipe
from halfstep.recipe.parse import parse_recipes
from halfstep.train.config.files import load, parse_options
from halfstep.train.environment import pick_device

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halfstep.compare.plan.arguments import Point
    from halfstep.compare.plan.grid import Cell
    from halfstep.recipe import Recipe
    from halfstep.train.config import Config

_VARIED = {"recipe": "--recipes", "seed": "--seeds", "device": "--device"}


def plan(  # noqa: PLR0913  (the command has as many options)
    config: str,
    *,
    recipes: str,
    seeds: str | None = None,
    looks: str | None = None,
    margin: float = 100 * MARGIN,
    aa: bool = False,
    control: bool = False,
    options: Sequence[str] = (),
    axes: Sequence[str] = (),
    device: str | None = None,
    devices: str | None = None,
    processes: int = 1,
    here: bool = True,
    time_limit: str | None = None,
    tag: str | None = None,
    out: Path | None = None,
) -> Plan:
    """Check the arguments of a comparison, and return its plan.

    Args:
        config: The name of a shipped config, or the path of a YAML file.
        recipes: Names of recipes, separated by commas; the name of a recipe that the config defines
            is allowed.
        seeds: The number of seeds, or the seeds separated by commas; default: that of the last
            look, or `SEEDS`.
        looks: The numbers of seeds after which rows are judged, separated by commas; default: one
            look after all seeds.
        margin: The loss of accuracy that is tolerated, in points.
        aa: Whether the first recipe is trained once more, with other seeds.
        control: Whether a recipe that loses accuracy by design is trained too.
        options: Overrides "key.sub=value" of the config, for all cells.
        axes: Overrides "key.sub=value,value"; each combination of values is a point of the grid.
        device: The device of all cells; default: the device in the config.
        devices: The devices that run cells in parallel, separated by commas. Without it and
            `device`, a CPU runs as many cells at a time as it has cores for their `threads`.
        processes: The number of processes that train each cell.
        here: Whether the cells run on this machine, which then needs enough GPUs.
        time_limit: The longest time of a cell, such as "30m".
        tag: A suffix of the default directory, which separates comparisons of the same config.
        out: The comparison's directory; default: made from the config's name and the tag.

    Raises:
        ValueError: If an argument is invalid; the message is one line.
    """
    points = parse_axes(axes)
    _refuse_varied(options, points)
    loaded = load(config, options)
    own = _own_recipe(loaded)
    given = None if seeds is None else parse_seeds(seeds)
    planned = None if looks is None else parse_looks(looks, len(given) if given else None)
    numbers = given or tuple(range(planned[-1] if planned else SEEDS))
    named = parse_recipes(recipes, own)
    checks = checks_of(named, aa=aa, control=control)
    names = (*named, *checks)
    refuse_too_many("--recipes, --seeds and --grid", len(names) * len(numbers) * len(points))
    if device is not None and devices is not None:
        raise UserError(f"--device {device} and --devices {devices} are both given; write one")
    slots = parse_devices(devices) if devices is not None else ()
    is_decided = processes > 1 or "probes" in loaded.model_fields_set
    inspected = () if is_decided else ("probes=true",)

    def config_of(name: str, seed: int, point: Point, where: str | None) -> Config:
        mine: str | Mapping[str, Any] | None = name
        if checks.get(name) == "control":
            mine = CONTROL
        elif checks.get(name) == "again":
            mine, seed = named[0], seed + OTHER_SEEDS
        if own is not None and mine == own.name:
            mine = None
        flags = {"recipe": mine, "seed": seed, "device": where}
        return load(config, [*inspected, *options], flags, point=point)

    first = config_of(names[0], numbers[0], points[0], slots[0] if slots else device)
    where = [str(_device(slot, here=here)) for slot in slots or (first.device,)]
    kind = where[0].partition(":")[0]
    if here and not slots:
        refuse_too_few(where[0], processes, torch.accelerator.device_count())

    def resolve(name: str, seed: int, point: Point) -> dict[str, Any]:
        chosen = config_of(name, seed, point, kind)
        settings = chosen.model_dump(mode="json", exclude={"description"})
        # With all fields of the recipe: if a later version of halfstep changes a named recipe, the
        # settings change too, and the cell runs again.
        built = chosen.build_recipe()
        settings |= {"recipe": {"name": built.name, **built.settings()}}
        # Without the key for one process, so that the fingerprints of older results still match.
        return settings | ({PROCESSES: processes} if processes > 1 else {})

    if slots:
        running_in = deal_out(where, processes)
    else:
        cells = len(names) * len(numbers) * len(points)
        shares = here and device is None and kind == "cpu" and processes == 1
        running_in = (where[0],) * (_at_once(first, cells) if shares else 1)
    refuse(
        {
            Arm(name, point): config_of(name, numbers[0], point, where[0])
            for point in points
            for name in names
        },
        _device(where[0], here=here),
        processes,
    )
    directory = out or Path("runs") / "compare" / (
        first.name + (f"-{_checked(tag)}" if tag else "")
    )
    if not here:
        directory = directory.absolute()  # jobs on other nodes have other working directories
    grid = build_grid(
        first.name,
        device=kind,
        recipes=names,
        seeds=numbers,
        options=options,
        directory=directory,
        resolve=resolve,
        points=points,
        margin=parse_margin(margin),
        looks=planned or (),
        checks=checks,
    )
    limit = None if time_limit is None else parse_time_limit(time_limit)
    return Plan(grid, directory, running_in, limit)


def _at_once(config: Config, cells: int) -> int:
    """Return how many cells the CPU trains at a time if the command does not say it.

    Without `threads` in the config, a cell has a thread for each core. Models that are compiled
    stay in one process, which compiles them once.
    """
    if config.threads is None or config.model.compile:
        return 1
    threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else config.threads
    return at_once(threads + config.data.workers, cells)


def _device(name: str, *, here: bool) -> torch.device:
    """Return the device of that name; only if `here` is true, this machine must have the device."""
    return pick_device(name) if here or name == "auto" else torch.device(name)


def train_command(cell: Cell, device: str) -> list[str]:
    """Return the program and arguments that run a cell on a device, with its copy of the config.

    An interrupted cell continues from its newest checkpoint.
    """
    several = ("--processes", str(cell.processes)) if cell.processes > 1 else ()
    return [
        *(sys.executable, "-m", "halfstep", "train", str(cell.config_file), "--device", device),
        *("--out", str(cell.run_directory), "--resume", "auto", *several),
    ]


def _refuse_varied(options: Sequence[str], points: Sequence[Point]) -> None:
    fixed = parse_options(options)
    varied = parse_options(points[0], "grid")
    for flag, given in (("--options", fixed), ("--grid", varied)):
        for key, instead in _VARIED.items():
            # A field of the recipe (recipe.loss_scale=1024) is allowed: it changes all recipes.
            if key in given and not isinstance(given[key], dict):
                raise UserError(
                    f"{flag} sets {key!r}, which compare sets for each run; write {instead}"
                )
    for key in (override.partition("=")[0] for override in points[0]):
        if any(option.startswith(f"{key}=") for option in options):
            raise UserError(f"{key} is in --options and in --grid; leave one of them out")


def _own_recipe(config: Config) -> Recipe | None:
    return recipe(config.recipe) if isinstance(config.recipe, dict) else None


def _checked(tag: str) -> str:
    if not re.fullmatch(r"[\w.+-]+", tag):
        raise UserError(f"--tag is {tag!r}; allowed: letters, digits and _ . + -, as in --tag wide")
    return tag
