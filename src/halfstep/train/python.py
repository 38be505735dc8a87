"""`halfstep.train`: trains a config from a notebook or a program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halfstep.train.config import Config
from halfstep.train.config import files as config_files
from halfstep.train.loop.loop import train as train_run
from halfstep.train.store import run_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.train.run.observer import Observer
    from halfstep.train.store.run_directory import Summary


def train(
    config: str | Path | Mapping[str, Any] | Config,
    *,
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
    summary = halfstep.train("digits", overrides={"recipe": "fp16", "optimizer.lr": 0.05})
    print(summary.best_accuracy, summary.peak_memory_bytes)
    ```

    Args:
        config: The name of a shipped config, the path of a YAML file, a mapping with the same
            keys, or a `Config`.
        overrides: Fields to change, by dotted name.
        observers: Observers of the run, in addition to those in the config.
        out: The run directory; `runs/CONFIG/TAG` by default.
        tag: Last part of the run directory's name; the recipe and seed by default.
        resume: "auto", or the path of a checkpoint or a run directory. "auto" resumes from the
            newest complete checkpoint in the run directory, or starts anew if there is none.
        overwrite: Whether to replace a run that is already in the directory.
        quiet: Whether to hide the progress bar.

    Returns:
        The summary, as in `summary.json`; there is one also if the run fails numerically. Its
            `status` says how the run failed, and its `error` says why.

    Raises:
        ValueError: If the config, the device or the directory is invalid; nothing was trained. Or
            if there is not enough memory, or a file cannot be written; a run with a checkpoint can
            then be resumed. The message says what to do.
        KeyboardInterrupt: After an interruption during training. Use `resume` to continue.
    """
    chosen = _loaded(config, overrides or {})
    return train_run(
        chosen,
        Path(out) if out is not None else run_directory.place(chosen, tag),
        tag=tag,
        overwrite=overwrite,
        quiet=quiet,
        go_on=None if resume is None else str(resume),
        observers=observers,
    )


def _loaded(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any]
) -> Config:
    # `load` parses overrides as YAML, as on the command line; JSON is valid YAML.
    options = [f"{name}={json.dumps(value)}" for name, value in overrides.items()]
    if isinstance(config, Config):
        config = config.model_dump(mode="json")
    given = config if isinstance(config, Mapping) else str(config)
    return config_files.load(given, options)
