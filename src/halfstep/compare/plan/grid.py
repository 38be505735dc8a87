"""The cells of a comparison: every recipe under every seed, and what determines each one's result.

A grid may have further axes: overrides of the config, such as batch sizes. A recipe at one point of
them is an arm, and is compared with the first recipe at the same point.

Pure data: nothing here touches the disk or starts a process. `arguments` reads the command line,
`directory` keeps cells on disk, `runner` runs one, `comparison` runs them all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.compare.plan.arguments import Point

Resolve = Callable[[str, int, "Point"], Mapping[str, Any]]

PROCESSES = "processes"
"""The setting of a cell that is no key of its config."""
_LONGEST_NAME = 100


class Arm(NamedTuple):
    """What the seeds of one row of the table share.

    Attributes:
        recipe: Name of the recipe.
        point: Overrides of the config, one for each axis of the grid.
    """

    recipe: str
    point: Point = ()

    @property
    def label(self) -> str:
        """What progress and reports call it."""
        return " ".join((self.recipe, *self.point))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a comparison.

    Attributes:
        arm: Its recipe, the parts in the order that `Recipe` gives them, and its overrides.
        seed: Seed of the run.
        settings: Everything that determines the result, as plain data: the resolved config with
            recipe, seed and kind of device, and the number of processes where there are several.
        directory: Where the cell keeps its run directory, its logs and a record of its settings.
    """

    arm: Arm
    seed: int
    settings: Mapping[str, Any]
    directory: Path

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.arm.recipe

    @property
    def label(self) -> str:
        """What progress and reports call the cell."""
        return f"{self.arm.label} seed {self.seed}"

    @property
    def processes(self) -> int:
        """How many processes train together."""
        return int(self.settings.get(PROCESSES, 1))

    @property
    def config(self) -> dict[str, Any]:
        """The settings that a config has."""
        return {key: value for key, value in self.settings.items() if key != PROCESSES}

    @property
    def config_file(self) -> Path:
        """A config of the cell's own, which later edits elsewhere do not reach."""
        return self.directory / "config.yaml"

    @property
    def run_directory(self) -> Path:
        """The run directory, written by `halfstep train` alone."""
        return self.directory / "run"

    @property
    def fingerprint(self) -> str:
        """A digest of `settings`: equal for two cells exactly when the same run would follow."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Grid:
    """What is compared, validated.

    Attributes:
        config: Name of the config.
        device: Kind of device that every cell runs on ("cpu", "cuda").
        recipes: Names of the recipes; the first is the baseline.
        seeds: Seeds that every arm runs under.
        options: Overrides of the config, each "key=value", that every cell gets.
        points: Overrides that differ between rows.
        cells: The runs, in the order in which they run: a whole comparison of the first seed first.
    """

    config: str
    device: str
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    options: tuple[str, ...]
    points: tuple[Point, ...]
    cells: tuple[Cell, ...]

    @property
    def processes(self) -> int:
        """How many processes train each cell."""
        return self.cells[0].processes

    @property
    def place(self) -> str:
        """What each cell runs on: "cpu", or "2 processes of cpu"."""
        several = self.processes > 1
        return f"{self.processes} processes of {self.device}" if several else self.device

    @property
    def arms(self) -> tuple[Arm, ...]:
        """One for each row of the table, in its order."""
        return tuple(Arm(name, point) for point in self.points for name in self.recipes)

    @property
    def axes(self) -> tuple[str, ...]:
        """Keys of the config that differ between points."""
        return tuple(override.partition("=")[0] for override in self.points[0])

    def baseline(self, arm: Arm) -> Arm:
        """Return what an arm is compared with.

        The first recipe at the same point; where there is one recipe only, the first point.
        """
        if len(self.recipes) == 1:
            return self.arms[0]
        return Arm(self.recipes[0], arm.point)


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison that can start.

    Attributes:
        grid: Its cells.
        directory: Where it goes.
        devices: Slots that run a cell at a time each; one may be there more than once.
        time_limit: Seconds after which a cell is ended; None for no limit.
    """

    grid: Grid
    directory: Path
    devices: tuple[str, ...]
    time_limit: float | None = None


def build_grid(
    config: str,
    *,
    device: str,
    recipes: Sequence[str],
    seeds: Sequence[int],
    options: Sequence[str],
    directory: Path,
    resolve: Resolve,
    points: Sequence[Point] = ((),),
) -> Grid:
    """Lay out the cells of a comparison.

    Args:
        config: Name of the config.
        device: Kind of device that every cell runs on.
        recipes: Names as `parse_recipes` returns them.
        seeds: Seeds as `parse_seeds` returns them.
        options: Overrides of the config.
        directory: The comparison's directory.
        resolve: Gives the settings of the run with a recipe, a seed and the overrides of a point,
            or raises a `ValueError`.
        points: Overrides as `parse_axes` returns them.
    """
    cells = tuple(
        Cell(
            Arm(name, point),
            seed,
            resolve(name, seed, point),
            directory / _folder(name, point, seed),
        )
        for seed in seeds
        for point in points
        for name in recipes
    )
    return Grid(config, device, tuple(recipes), tuple(seeds), tuple(options), tuple(points), cells)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what differs between two settings, one "key: old -> new" each, in the order of keys."""
    old, new = dict(flat(before)), dict(flat(now))
    absent = "not set"
    return [
        f"{key}: {old.get(key, absent)} -> {new.get(key, absent)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, absent) != new.get(key, absent)
    ]


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting with its whole key ("optimizer.lr") and its value as JSON."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)


def _folder(name: str, point: Point, seed: int) -> str:
    wanted = "-".join((name, *point))
    folder = re.sub(r"[^\w.+=-]", "_", wanted)
    if folder != wanted or len(folder) > _LONGEST_NAME or folder.startswith("."):
        # What was cut or replaced must not make one folder of two arms.
        digest = hashlib.sha256(wanted.encode()).hexdigest()[:8]
        folder = f"{folder[:_LONGEST_NAME].lstrip('.')}-{digest}"
    return f"{folder}-seed{seed}"
