"""`halfstep.compare`: the command of the same name, for the objects of a program.

Importing this module imports neither torch nor pydantic; a call does.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep import caller
from halfstep.errors import UserError, closest
from halfstep.recipe import Recipe
from halfstep.recipe.table import recipe as find_recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.compare.cells.results import Result
    from halfstep.compare.plan.arguments import Point
    from halfstep.compare.plan.grid import Cell, Grid
    from halfstep.compare.plan.score import Score
    from halfstep.compare.rows.rows import Row
    from halfstep.compare.rows.verdict import Verdict

_SET_HERE = ("recipe", "seed", "device", "out", "name", "tag", "resume", "overwrite", "quiet")
"""Arguments of `fit` that differ between the runs of a comparison, or follow from it."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of `halfstep.compare`.

    Attributes:
        directory: The comparison's directory, with the table and the report.
        grid: The runs.
        results: One result for each run.
    """

    directory: Path
    grid: Grid
    results: tuple[Result, ...]

    @property
    def rows(self) -> list[Row]:
        """The rows of the table, over all seeds."""
        from halfstep.compare.rows.rows import rows_by_arm

        return rows_by_arm(self.grid, self.results)

    @property
    def verdicts(self) -> list[Verdict]:
        """The answer for each recipe except the first, with which they are compared."""
        from halfstep.compare.rows.verdict import verdicts

        return verdicts(self.grid, self.rows)


@caller.through(caller.Python())
def compare(  # noqa: PLR0913  (the options of the command)
    build: Callable[..., Mapping[str, Any]],
    recipes: Sequence[str | Recipe | Mapping[str, Any]] = ("fp32", "fp16", "bf16"),
    *,
    seeds: int | Sequence[int] = 3,
    margin: float | None = None,
    looks: Sequence[int] = (),
    aa: bool = False,
    control: bool = False,
    device: str | None = None,
    name: str | None = None,
    tag: str | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    quiet: bool = False,
) -> Compared:
    """Train the objects of a program under several recipes and seeds, and compare the results.

    ```python
    def build(seed):
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        return dict(
            model=model, optimizer=optimizer, train_loader=..., val_loader=...,
            loss=nn.functional.mse_loss, epochs=10,
        )

    compared = halfstep.compare(build, recipes=["fp32", "fp16"], seeds=3, margin=0.01)
    ```

    It prints the table and verdicts of `halfstep compare`, and writes the same files. The runs
    follow each other in this process; a call after an interruption continues with the missing ones.

    Args:
        build: Returns the arguments of `halfstep.fit` by name, with new objects at each call. It
            is called with the seed, if it has a parameter, after torch, NumPy and Python have been
            seeded with it.
        recipes: The recipes, one row of the table each. The first is the reference.
        seeds: The number of seeds, or the seeds.
        margin: The loss of the metric that is tolerated, in its own unit; needed unless `monitor`
            is "accuracy", for which it is in points, 1 by default. What `monitor` names in the
            arguments of `fit`, by default the loss, is what recipes are judged by.
        looks: Numbers of seeds, such as (4, 8, 16), after which rows are judged; settled rows get
            no further seeds.
        aa: Whether the first recipe is trained once more, with other seeds.
        control: Whether a recipe that loses by design is trained too.
        device: The device; see `fit`.
        name: The name of the comparison; by default that of the function.
        tag: Suffix of the comparison's directory.
        out: The comparison's directory; `runs/compare/NAME[-TAG]` by default.
        fresh: Whether to repeat runs that already have a result. A run is repeated in any case if
            the file with `build` has changed.
        quiet: Whether to print nothing.

    Returns:
        The directory, the results, the rows and the verdicts.

    Raises:
        ValueError: If an argument is invalid, or if the directory cannot be used.
        TypeError: If `build` does not return a mapping with the arguments of `fit`.
        KeyboardInterrupt: After an interruption; the message says how many results exist.
    """
    from rich.console import Console

    from halfstep.compare import comparison
    from halfstep.compare.cells import directory as files
    from halfstep.compare.cells.in_turn import InTurn
    from halfstep.compare.output import table, tables
    from halfstep.compare.plan.arguments import parse_looks
    from halfstep.compare.plan.checks import CONTROL, OTHER_SEEDS, checks_of
    from halfstep.compare.plan.grid import Plan, build_grid

    if not callable(build):
        raise TypeError(
            f"build is a {type(build).__name__}; allowed: a function that returns the arguments of "
            "halfstep.fit"
        )
    by_name = _by_name(recipes)
    numbers = _seeds(seeds)
    checks = checks_of(list(by_name), aa=aa, control=control)
    first = next(iter(by_name.values()))
    chosen = {
        **by_name,
        **dict.fromkeys(checks, first),
        **({"control": CONTROL} if control else {}),
    }
    kind, score = _looked_at(build, numbers[0], device)
    called = str(name or getattr(build, "__name__", "build"))
    place = (
        Path(out)
        if out is not None
        else Path("runs", "compare", f"{called}{(tag and f'-{tag}') or ''}")
    )
    source = _source(build)

    def resolve(recipe: str, seed: int, point: Point) -> dict[str, Any]:
        del point
        built = find_recipe(chosen[recipe])
        return {
            "name": called,
            "recipe": {"name": built.name, **built.settings()},
            "seed": seed + (OTHER_SEEDS if checks.get(recipe) == "again" else 0),
            "device": kind,
            "source": source,
        }

    grid = build_grid(
        called,
        device=kind.partition(":")[0],
        recipes=list(chosen),
        seeds=numbers,
        options=(),
        directory=place,
        resolve=resolve,
        margin=_margin(margin, score),
        looks=parse_looks(",".join(map(str, looks)), len(numbers)) if looks else (),
        checks=checks,
        score=score,
        program=getattr(build, "__name__", "build"),
    )

    def run(cell: Cell) -> None:
        from halfstep.train.objects.fit import fit

        seed = int(cell.settings["seed"])
        fit(
            **_arguments(build, seed),
            recipe=dict(cell.settings["recipe"]),
            seed=seed,
            device=kind,
            name=called,
            out=cell.run_directory,
            resume="auto",
            quiet=True,
        )

    console = Console(quiet=quiet)
    judged, results = comparison.compare(
        Plan(grid, place, (kind,)), None, console, fresh=fresh, place=InTurn(run)
    )
    table.show(console, judged, results)
    console.print(
        f"{tables.REPORT}, {tables.TABLE} and {files.COMPARISON} are in {place}", soft_wrap=True
    )
    return Compared(place, judged, tuple(results))


def _by_name(recipes: Any) -> dict[str, Any]:
    """Return the recipes by the names of their rows."""
    if isinstance(recipes, str | Recipe | Mapping) or not isinstance(recipes, Sequence):
        raise UserError(
            f"recipes is {recipes!r}; allowed: a list, such as recipes=['fp32', 'fp16']"
        )
    built: dict[str, Any] = {}
    for recipe in recipes:
        named = find_recipe(recipe).name
        if named in built:
            raise UserError(f"recipes has {named!r} twice; name it once")
        built[named] = recipe
    if not built:
        raise UserError("recipes is empty; allowed: one or more, such as recipes=['fp32', 'fp16']")
    return built


def _seeds(seeds: Any) -> tuple[int, ...]:
    several = range(seeds) if type(seeds) is int else seeds
    numbers = tuple(several) if isinstance(several, Sequence) else ()
    whole = all(type(number) is int and number >= 0 for number in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers) or isinstance(seeds, str):
        raise UserError(
            f"seeds is {seeds!r}; allowed: how many (3 means seeds 0, 1 and 2), or a list of "
            "different seeds, such as seeds=[0, 7, 9]"
        )
    return numbers


def _margin(margin: Any, score: Score) -> float:
    """Return the margin in the unit of the score; accuracies are from 0 to 1."""
    if margin is None and score.is_accuracy:
        return 0.01
    if margin is None:
        raise UserError(
            f"margin is not given, and recipes are judged by {score.name!r}, of which halfstep "
            "knows no tolerable loss; write margin=..., in the unit of that metric"
        )
    is_number = isinstance(margin, int | float) and not isinstance(margin, bool)
    if not (is_number and 0 < margin < (100 if score.is_accuracy else float("inf"))):
        most = " and below 100, in points" if score.is_accuracy else ""
        raise UserError(f"margin is {margin!r}; allowed: a number above 0{most}")
    return float(margin) / score.scale


def _arguments(build: Callable[..., Any], seed: int) -> dict[str, Any]:
    """Call the user's function, after seeding all generators that it may draw from."""
    import random

    import numpy as np
    import torch

    from halfstep.train.objects.fit import fit

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (the one that the user's code draws from)
    given = build(**{key: seed for key in inspect.signature(build).parameters if key == "seed"})
    if not isinstance(given, Mapping):
        raise TypeError(
            f"build returned a {type(given).__name__}; allowed: a mapping with the arguments of "
            "halfstep.fit, such as dict(model=model, optimizer=optimizer, ...)"
        )
    signature = inspect.signature(fit)
    for key in given:
        if key in _SET_HERE:
            raise UserError(
                f"build returned {key!r}, which compare sets for each run; leave it out"
            )
        if key not in signature.parameters:
            known = [parameter for parameter in signature.parameters if parameter not in _SET_HERE]
            raise UserError(
                f"build returned {key!r}; allowed: {', '.join(known)}{closest(key, known)}"
            )
    needed = [
        key
        for key, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
    ]
    missing = [key for key in needed if key not in given]
    if missing:
        raise UserError(f"build returned no {' and no '.join(missing)}; add what fit needs")
    return dict(given)


def _looked_at(build: Callable[..., Any], seed: int, device: str | None) -> tuple[str, Score]:
    """Return the device of the runs, and the metric by which they are judged."""
    from halfstep.compare.plan.score import Score
    from halfstep.train.environment import pick_device
    from halfstep.train.objects.fit import device_of, refuse_other_types
    from halfstep.train.objects.functions import monitor_of, named_metrics

    given = _arguments(build, seed)
    named = ("model", "optimizer", "train_loader", "val_loader", "loss", "scheduler")
    refuse_other_types(*(given.get(name) for name in named))
    watched = monitor_of(
        given.get("monitor", "loss"), given.get("mode"), named_metrics(given.get("metrics"))
    )
    kind = str(pick_device(device_of(given["model"], device)))
    return kind, Score(watched.name, watched.less_is_better)


def _source(build: Callable[..., Any]) -> str:
    """Return a digest of the file with a function, or of the function alone in a notebook."""
    try:
        file = inspect.getsourcefile(build)
        text = Path(file).read_bytes() if file and Path(file).is_file() else b""
        text = text or inspect.getsource(build).encode()
    except (OSError, TypeError):
        text = b""
    return hashlib.sha256(text).hexdigest()[:16]
