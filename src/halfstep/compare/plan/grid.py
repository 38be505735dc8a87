"""The cells of a comparison: each recipe with each seed, and the settings that determine a result.

A grid may have further axes: overrides of the config, such as batch sizes. A point is one value per
axis. A recipe at one point is an arm; it is compared with the first recipe at the same point. Two
arms may be checks, which show whether the comparison can tell: the first recipe again with other
seeds (A/A), and a recipe that loses accuracy by design.

This file is pure data: it reads no file and starts no process. `arguments` parses the command line,
`directory` stores cells on disk, `runner` runs one cell, and `comparison` runs all of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from halfstep.compare.plan.score import ACCURACY, Score
from halfstep.looks import levels
from halfstep.statistics import CONFIDENCE

if TYPE_CHECKING:
    from pathlib import Path

    from halfstep.compare.plan.arguments import Point

Resolve = Callable[[str, int, "Point"], Mapping[str, Any]]

PROCESSES = "processes"
"""The number of processes: the only key in the settings of a cell that is no key of its config."""
MARGIN = 0.01
"""The loss of accuracy, 0 to 1, that is tolerated unless the comparison has a margin of its own."""
Check = Literal["again", "control"]
"""What a row shows: that a recipe which is as good is not called worse, or that a bad one is."""
_LONGEST_NAME = 100


class Arm(NamedTuple):
    """A recipe at one point of the grid: one row of the table, over all seeds.

    Attributes:
        recipe: Name of the recipe.
        point: Overrides of the config, one for each axis of the grid.
    """

    recipe: str
    point: Point = ()

    @property
    def label(self) -> str:
        """The name of the arm in progress messages and reports."""
        return " ".join((self.recipe, *self.point))


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a comparison.

    Attributes:
        arm: The recipe and the overrides of the run.
        seed: Seed of the run.
        settings: Everything that determines the result, as plain data: the resolved config with
            recipe, seed and kind of device, and the number of processes if there are several.
        directory: Contains the run directory, the logs and a record of the settings.
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
        """The name of the cell in progress messages and reports."""
        return f"{self.arm.label} seed {self.seed}"

    @property
    def processes(self) -> int:
        """The number of processes that train this cell."""
        return int(self.settings.get(PROCESSES, 1))

    @property
    def config(self) -> dict[str, Any]:
        """The settings that are keys of the config."""
        return {key: value for key, value in self.settings.items() if key != PROCESSES}

    @property
    def config_file(self) -> Path:
        """The cell's copy of the config, so that later edits of the original have no effect."""
        return self.directory / "config.yaml"

    @property
    def run_directory(self) -> Path:
        """The run directory; only `halfstep train` writes to it."""
        return self.directory / "run"

    @property
    def fingerprint(self) -> str:
        """A digest of `settings`: two cells with the same digest have the same run."""
        text = json.dumps(self.settings, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Grid:
    """The validated cells of a comparison.

    Attributes:
        config: Name of the config.
        device: Kind of device of all cells ("cpu" or "cuda").
        recipes: Names of the recipes; the first is the baseline.
        seeds: Seeds of each arm.
        options: Overrides of the config ("key=value") for all cells.
        points: The points of the grid: overrides of the config that differ between rows.
        cells: The cells, in the order in which they run: all cells of the first seed, then all of
            the second, and so on. After a look, arms that are settled have no further cells.
        margin: The loss of the score that each recipe is judged by; 0 to 1 for accuracy.
        looks: The numbers of seeds at which rows are judged, increasing.
        plans: The looks of each comparison that this directory has judged, in order.
        checks: The recipes that are checks, by name.
        score: The figure by which rows are judged.
        program: The function that builds the objects of a run; "" if runs are of a config.
    """

    config: str
    device: str
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    options: tuple[str, ...]
    points: tuple[Point, ...]
    cells: tuple[Cell, ...]
    margin: float = MARGIN
    looks: tuple[int, ...] = ()
    plans: tuple[tuple[int, ...], ...] = ()
    checks: Mapping[str, Check] = field(default_factory=dict)
    score: Score = ACCURACY
    program: str = ""

    @property
    def processes(self) -> int:
        """The number of processes that train each cell."""
        return self.cells[0].processes

    @property
    def place(self) -> str:
        """The device of each cell for titles: "cpu", or "2 processes of cpu"."""
        several = self.processes > 1
        return f"{self.processes} processes of {self.device}" if several else self.device

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The arms, in the order of the table's rows."""
        return tuple(Arm(name, point) for point in self.points for name in self.recipes)

    @property
    def axes(self) -> tuple[str, ...]:
        """The keys of the config that differ between points."""
        return tuple(override.partition("=")[0] for override in self.points[0])

    @property
    def comparable(self) -> float:
        """The largest difference from the baseline in any seed, of a row whose noise is pooled.

        A model that has failed to learn has a noise of its own, or none. Of an accuracy, it is as
        much under any margin.
        """
        return 10 * (MARGIN if self.score.is_accuracy else self.margin)

    def confidence(self, seeds: int) -> float:
        """Return the confidence of the interval of a row that is judged after so many seeds.

        The errors of all looks of a plan add up to 1 - `CONFIDENCE`. A comparison with other looks
        in the same directory is a further attempt at the same question: it may spend half of what
        the attempt before it could. So all attempts together spend at most twice that error, and a
        wrong call, for which only one side of an interval is to blame, has at most 5 %.
        """
        looks = self.looks or (len(self.seeds),)
        earlier = self.plans.index(looks) if looks in self.plans else len(self.plans)
        number = min(bisect_left(looks, seeds), len(looks) - 1)
        return 1 - levels(looks, (1 - CONFIDENCE) / 2**earlier)[number]

    def of(self, cells: Sequence[Cell]) -> Grid:
        """Return the grid with only these of its cells."""
        return replace(self, cells=tuple(cells))

    def baseline(self, arm: Arm) -> Arm:
        """Return the arm with which `arm` is compared.

        It is the first recipe at the same point. If there is only one recipe, it is the first arm.
        """
        if len(self.recipes) - len(self.checks) == 1 and arm.recipe not in self.checks:
            return self.arms[0]
        return Arm(self.recipes[0], arm.point)


@dataclass(frozen=True, slots=True)
class Plan:
    """A comparison that is ready to start.

    Attributes:
        grid: The cells.
        directory: The comparison's directory.
        devices: The slots (see `slots`). Each slot runs one cell at a time. A slot may occur more
            than once.
        time_limit: Seconds after which a cell is stopped; None for no limit.
    """

    grid: Grid
    directory: Path
    devices: tuple[str, ...]
    time_limit: float | None = None


def build_grid(  # noqa: PLR0913  (a comparison has as many settings)
    config: str,
    *,
    device: str,
    recipes: Sequence[str],
    seeds: Sequence[int],
    options: Sequence[str],
    directory: Path,
    resolve: Resolve,
    points: Sequence[Point] = ((),),
    margin: float = MARGIN,
    looks: Sequence[int] = (),
    checks: Mapping[str, Check] | None = None,
    score: Score = ACCURACY,
    program: str = "",
) -> Grid:
    """Create the cells of a comparison.

    Args:
        config: Name of the config.
        device: Kind of device of all cells.
        recipes: Names, as `parse_recipes` returns them.
        seeds: Seeds, as `parse_seeds` returns them.
        options: Overrides of the config for all cells.
        directory: The comparison's directory.
        resolve: Returns the settings of a cell, given the name of its recipe, its seed and its
            point; raises a `ValueError` if they are invalid.
        points: Points, as `parse_axes` returns them.
        margin: The tolerated loss of the score; 0 to 1 for accuracy.
        looks: Numbers of seeds, as `parse_looks` returns them; default: one look after all seeds.
        checks: The recipes that are checks, by name.
        score: The figure by which rows are judged.
        program: The function that builds the objects of a run; "" if runs are of a config.
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
    return Grid(
        config,
        device,
        tuple(recipes),
        tuple(seeds),
        tuple(options),
        tuple(points),
        cells,
        margin,
        tuple(looks) or (len(seeds),),
        checks=checks or {},
        score=score,
        program=program,
    )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two settings as "key: old -> new", sorted by key."""
    old, new = dict(flat(before)), dict(flat(now))
    absent = "not set"
    return [
        f"{key}: {old.get(key, absent)} -> {new.get(key, absent)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, absent) != new.get(key, absent)
    ]


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting as its full key ("optimizer.lr") and its value in JSON."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)


def _folder(name: str, point: Point, seed: int) -> str:
    wanted = "-".join((name, *point))
    folder = re.sub(r"[^\w.+=-]", "_", wanted)
    if folder != wanted or len(folder) > _LONGEST_NAME or folder.startswith("."):
        # Two arms could have the same shortened name, so a digest of the full name is added.
        digest = hashlib.sha256(wanted.encode()).hexdigest()[:8]
        folder = f"{folder[:_LONGEST_NAME].lstrip('.')}-{digest}"
    return f"{folder}-seed{seed}"
