"""`halfstep.train` for Python: a run from a notebook or a program, without the command line."""

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
    """Train a config in this process, and leave a run directory as `halfstep train` does.

    ```python
    summary = halfstep.train("digits", overrides={"recipe": "fp16", "optimizer.lr": 0.05})
    print(summary.best_accuracy, summary.peak_memory_bytes)
    ```

    Args:
        config: The name of a shipped config, the path of a YAML file, a mapping as such a file
            holds one, or a `Config`.
        overrides: Fields to change, by dotted name.
        observers: Who watches the run, besides those that the config names.
        out: The run directory; `runs/CONFIG/TAG` by default.
        tag: Names the run directory; by default its recipe and seed do.
        resume: "auto" to go on from the newest whole checkpoint in the run directory, if there is
            one; or the path of a checkpoint or of a run directory.
        overwrite: Whether a run that is in the directory may be replaced.
        quiet: Whether to draw no progress bar.

    Returns:
        The summary, as `summary.json` has it. A run that went wrong numerically has one too: its
        `status` says how, its `error` why.

    Raises:
        ValueError: If the config, the device or the directory is wrong, in one line that says what
            to write instead; nothing was trained then.
        KeyboardInterrupt: After an interruption in training; the run can go on with `resume`.
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
    # JSON is YAML, which is what overrides are in on the command line.
    options = [f"{name}={json.dumps(value)}" for name, value in overrides.items()]
    if isinstance(config, Config):
        config = config.model_dump(mode="json")
    given = config if isinstance(config, Mapping) else str(config)
    return config_files.load(given, options)
