"""The cells of a comparison: every recipe under every seed, and what determines each one's result.

Pure data and parsing: nothing here touches the disk or starts a process. `directory` keeps cells on
disk, `runner` runs one, `comparison` runs them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halfstep.errors import UserError
from halfstep.recipe import recipe

if TYPE_CHECKING:
    from pathlib import Path

Resolve = Callable[[str, int], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a comparison.

    Attributes:
        recipe: Name of the recipe, its parts in the order that `Recipe` gives them.
        seed: Seed of the run.
        settings: Everything that determines the result: the resolved config with recipe, seed and
            device, as plain data.
        directory: Where the cell keeps its run directory, its logs and a record of its settings.
    """

    recipe: str
    seed: int
    settings: Mapping[str, Any]
    directory: Path

    @property
    def label(self) -> str:
        """What progress and reports call the cell."""
        return f"{self.recipe} seed {self.seed}"

    @property
    def config_file(self) -> Path:
        """The settings as a config of the cell's own, which later edits elsewhere do not reach."""
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
        device: Device that every cell runs on ("cpu", "cuda:0").
        recipes: Names of the recipes, one row of the table each; the first is the baseline.
        seeds: Seeds that every recipe runs under.
        options: Overrides of the config, each "key=value", that every cell gets.
        cells: The runs, in the order in which they run: a whole comparison of the first seed first.
    """

    config: str
    device: str
    recipes: tuple[str, ...]
    seeds: tuple[int, ...]
    options: tuple[str, ...]
    cells: tuple[Cell, ...]


def build_grid(
    config: str,
    *,
    device: str,
    recipes: Sequence[str],
    seeds: Sequence[int],
    options: Sequence[str],
    directory: Path,
    resolve: Resolve,
) -> Grid:
    """Lay out the cells of a comparison.

    Args:
        config: Name of the config.
        device: Device that every cell runs on.
        recipes: Names as `parse_recipes` returns them.
        seeds: Seeds as `parse_seeds` returns them.
        options: Overrides of the config.
        directory: The comparison's directory.
        resolve: Gives the settings of the run with a recipe and a seed, or raises a `ValueError`.
    """
    cells = tuple(
        Cell(name, seed, resolve(name, seed), directory / f"{name}-seed{seed}")
        for seed in seeds
        for name in recipes
    )
    return Grid(config, device, tuple(recipes), tuple(seeds), tuple(options), cells)


def parse_recipes(text: str) -> tuple[str, ...]:
    """Read `--recipes fp32,fp16,bf16`; each name may be a composition such as bf16+tf32.

    Raises:
        ValueError: If a name is unknown, or if one recipe is named twice.
    """
    given = [part.strip() for part in text.split(",") if part.strip()]
    if not given:
        raise UserError(
            f"--recipes is {text!r}; name one or more, such as --recipes fp32,fp16,bf16"
        )
    try:
        names = [recipe(part).name for part in given]
    except ValueError as error:
        raise UserError(f"--recipes: {error}") from error
    _refuse_repeated("--recipes", text, names)
    return tuple(names)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read `--seeds`: a single number counts seeds from 0 on, numbers with commas are the seeds.

    Raises:
        UserError: If it is neither, or if a seed is named twice.
    """
    parts = [part.strip() for part in text.split(",")]
    trailing_comma = len(parts) > 1 and not parts[-1]
    numbers = [_whole_number(part, text) for part in (parts[:-1] if trailing_comma else parts)]
    if len(parts) > 1:
        _refuse_repeated("--seeds", text, numbers)
        return tuple(numbers)
    if numbers[0] == 0:
        raise _bad_seeds(text)
    return tuple(range(numbers[0]))


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Say what differs between two settings, one "key: old -> new" each, in the order of keys."""
    old, new = dict(_flat(before)), dict(_flat(now))
    absent = "not set"
    return [
        f"{key}: {old.get(key, absent)} -> {new.get(key, absent)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, absent) != new.get(key, absent)
    ]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)


def _whole_number(part: str, text: str) -> int:
    if not (part.isascii() and part.isdigit()):
        raise _bad_seeds(text)
    return int(part)


def _bad_seeds(text: str) -> UserError:
    return UserError(
        f"--seeds is {text!r}; allowed: how many (3 means seeds 0, 1 and 2), "
        "or the seeds themselves with commas (0,7,9; 7, is seed 7 alone)"
    )


def _refuse_repeated(option: str, text: str, values: Sequence[object]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{option} is {text!r}, which names {value} twice; name it once")
