"""`halfstep.train`, `evaluate` and `predict`: the commands of the same names, for Python programs.

Importing this module imports neither torch nor pydantic; the first call of a function does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from halfstep import caller
from halfstep.errors import refuse_unknown
from halfstep.recipe import Recipe
from halfstep.recipe.table import recipe as find_recipe
from halfstep.recipe.table import written_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from halfstep.train.after.predict import Predictions
    from halfstep.train.config import Config
    from halfstep.train.config.data import ColumnsConfig
    from halfstep.train.run.observer import Observer
    from halfstep.train.store.run_directory import Summary


@caller.through(caller.Python())
def train(  # noqa: PLR0913  # the options of the command
    config: str | Path | Mapping[str, Any] | Config,
    *,
    recipe: str | Path | Mapping[str, Any] | Recipe | None = None,
    seed: int | None = None,
    device: str | torch.device | None = None,
    overrides: Mapping[str, Any] | None = None,
    observers: Sequence[Observer] = (),
    out: str | Path | None = None,
    tag: str | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Summary:
    """Train a config in this process and write a run directory, like `halfstep train`.

    ```python
    summary = halfstep.train("digits", recipe="fp16", overrides={"optimizer.lr": 0.05})
    print(summary.best_accuracy, summary.peak_memory_bytes)
    ```

    Args:
        config: The name of a shipped config, the path of a YAML file, a mapping with the same
            keys, or a `Config`.
        recipe: The recipe, in any form that `halfstep.recipe` takes; that of the config by default.
        seed: Seed for the initial weights and the order of the images; that of the config by
            default.
        device: The device, such as "cpu", "cuda" or "cuda:1"; that of the config by default.
        overrides: Fields of the config to change, by dotted name.
        observers: Observers of the run, in addition to those in the config.
        out: The run directory; `runs/CONFIG/TAG` by default.
        tag: Last part of the run directory's name; the recipe and seed by default.
        resume: "auto", or the path of a checkpoint or a run directory. "auto" resumes from the
            newest complete checkpoint in the run directory, or starts anew if there is none.
        overwrite: Whether to replace a run that is already in the directory.
        quiet: Whether to print no progress. The file `log.txt` in the run directory has it too.

    Returns:
        The summary, as in `summary.json`; there is one also if the run fails numerically. Its
            `status` says how the run failed, and its `error` says why.

    Raises:
        ValueError: If the config, the device or the directory is invalid; nothing was trained. Or
            if there is not enough memory, or a file cannot be written; a run with a checkpoint can
            then be resumed. The message says what to do.
        TypeError: If `overrides` is not a mapping.
        KeyboardInterrupt: After an interruption during training. Use `resume` to continue.
    """
    from halfstep.train.config import Config, files
    from halfstep.train.store import run_directory

    if not (overrides is None or isinstance(overrides, Mapping)):
        raise TypeError(
            f"overrides is {overrides!r}; allowed: a mapping of fields; write "
            f"{caller.fields({'optimizer.lr': 0.02})}"
        )
    arguments = {"recipe": plain(spec(recipe)), "seed": seed, "device": _text(device)}
    if isinstance(config, Config):
        config = config.model_dump(mode="json")
    given = plain(config) if isinstance(config, Mapping) else str(config)
    chosen = files.load(given, plain(overrides or {}), arguments)
    run = Path(out) if out is not None else run_directory.place(chosen, tag)

    from halfstep.train.loop import loop

    return loop.train(
        chosen,
        run,
        tag=tag,
        overwrite=overwrite,
        quiet=quiet,
        go_on=_text(resume),
        observers=observers,
    )


@caller.through(caller.Python())
def evaluate(
    run: str | Path,
    *,
    data: str | Path | None = None,
    root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    checkpoint: Literal["best", "last"] = "best",
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run under the run's recipe, like `halfstep eval`.

    ```python
    print(halfstep.evaluate("runs/digits/fp16-seed0")["accuracy"])
    ```

    Args:
        run: The run directory.
        data: A CSV file with the columns image and label, whose images are evaluated; the
            validation images of the run by default.
        root: The folder of the images. Without `data`, it replaces `data.root` of the run's config.
            With `data`, the paths in the file start from it; the file's folder by default.
        columns: Names of the columns image and label in the file; those in the run's config by
            default.
        checkpoint: The checkpoint with the highest accuracy, or the last one.
        device: The device; that of the run's config by default.

    Returns:
        The metrics: `loss`, `accuracy` (0 to 1), `macro_f1` and, with more than five classes,
            `top5`. `recall` has the recall of each class by name, `epoch` the number of finished
            epochs at the checkpoint, and `device` the device of the evaluation. `recorded` has the
            metrics that the run recorded, and `matches` says whether they are equal; both are None
            with `data`. `unreadable` has a line for each image that could not be read.

    Raises:
        ValueError: If the run, its checkpoint or the file cannot be read, or if the file has a
            label that the run does not know.
    """
    refuse_unknown("checkpoint", [checkpoint], ["best", "last"])
    from halfstep.train.after import evaluate as evaluation

    place = Path(root) if root is not None else None
    if data is None:
        result = evaluation.evaluate(Path(run), checkpoint, _text(device), place)
    else:
        result = evaluation.evaluate_on(
            Path(run), Path(data), checkpoint, _text(device), place, _columns(columns)
        )
    return {
        **result.measured.scalars(),
        "recall": result.recall,
        "epoch": result.epoch,
        "device": result.device,
        "recorded": result.recorded.scalars() if result.recorded else None,
        "matches": result.matches,
        "unreadable": result.unreadable,
    }


@caller.through(caller.Python())
def predict(
    run: str | Path | Sequence[str | Path],
    images: str | Path | Sequence[str | Path],
    *,
    root: str | Path | None = None,
    columns: Mapping[str, str] | None = None,
    flip: bool = False,
    checkpoint: Literal["best", "last"] = "best",
    device: str | torch.device | None = None,
) -> Predictions:
    """Classify images with the model of a run under the run's recipe, like `halfstep predict`.

    ```python
    for image, label in halfstep.predict("runs/pets/fp16-seed0", ["cat.jpg", "holiday"]).labels:
        print(image, label)
    ```

    Args:
        run: The run directory, or several of runs with the same classes, whose probabilities are
            averaged.
        images: Images, folders of images, and CSV files with a column image; one or several.
        root: The folder from which the paths in CSV files start; each file's folder by default.
        columns: Name of the column image in the files; that in the run's config by default.
        flip: Whether to average the predictions of each image and its mirror image.
        checkpoint: The checkpoint with the highest accuracy, or the last one.
        device: The device; that of the run's config by default.

    Returns:
        The class of each image, and the probability of each class.

    Raises:
        ValueError: If a run, its checkpoint or an input cannot be read, or if the runs have
            different classes.
    """
    refuse_unknown("checkpoint", [checkpoint], ["best", "last"])
    from halfstep.train.after.predict import predict as predict_images

    return predict_images(
        _paths(run),
        _paths(images),
        which=checkpoint,
        device=_text(device),
        root=Path(root) if root is not None else None,
        columns=_columns(columns),
        flip=flip,
    )


def plain(value: Any) -> Any:
    """Return a value of a config as the data that YAML would give; unknown types are unchanged."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def spec(recipe: Any) -> Any:
    """Return a recipe as a config has it; a `Recipe` by its name, if the name stands for it."""
    if not isinstance(recipe, Recipe):
        return written_out(recipe)
    try:
        if find_recipe(recipe.name) == recipe:
            return recipe.name
    except ValueError:
        pass
    return {"name": recipe.name, **recipe.settings()}


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _paths(given: str | Path | Sequence[str | Path]) -> list[Path]:
    return [Path(path) for path in ([given] if isinstance(given, str | Path) else given)]


def _columns(named: Mapping[str, str] | None) -> ColumnsConfig | None:
    from halfstep.train.data.sources.csv_rows import columns_of

    return None if named is None else columns_of(named)
