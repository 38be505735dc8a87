"""Where the figures of a run go besides `metrics.jsonl`: TensorBoard, Weights & Biases, MLflow.

Each is one small class on the same four methods. The last two are packages of their own, asked for
before a run begins; what they cannot deliver later (a network that is gone) ends the tracking there
and not the run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import threading
import warnings
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from halfstep.errors import UserError
from halfstep.files import parse_json, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

PROJECT = "halfstep"
_IDS = "tracking.json"


class TrackingWarning(UserWarning):
    """Figures no longer reach one of the places where they should go; the run goes on."""


class Sink(Protocol):
    """A place where figures go."""

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures such as "train/loss" of an optimizer step."""

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        """Record an image, uint8, shape (3, height, width)."""

    def close(self) -> None:
        """Write out what is not yet."""


class TensorBoard:
    """Event files in the run directory.

    Args:
        run: The run directory.
        resumed_at: The step that the run goes on from; what was written after it is hidden.
    """

    def __init__(self, run: Path, resumed_at: int | None) -> None:
        # Importing it is slow, and runs without it need not.
        from torch.utils.tensorboard.writer import SummaryWriter

        if getattr(threading.excepthook, "func", None) is not _print_unless_tensorboard:
            threading.excepthook = partial(_print_unless_tensorboard, threading.excepthook)
        purge = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=purge)

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        """Record an image."""
        self._writer.add_image(name, image, step)

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()


def _print_unless_tensorboard(
    before: Callable[[threading.ExceptHookArgs], object], ended: threading.ExceptHookArgs
) -> None:
    """Print what ends a thread, but not what ends the one that writes TensorBoard's event file.

    Its writer raises that again when it is next used, and a warning says so then.
    """
    if not type(ended.thread).__module__.startswith("tensorboard."):
        before(ended)


class WeightsAndBiases:
    """A run of `wandb`; its own variables (WANDB_PROJECT, WANDB_MODE, ...) decide where to.

    Args:
        run: The run directory.
        title: What the run is called there.
        settings: The config, as plain data.
        resumed_at: The step that the run goes on from.
    """

    def __init__(
        self, run: Path, title: str, settings: Mapping[str, Any], resumed_at: int | None
    ) -> None:
        self._wandb = importlib.import_module("wandb")
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=title,
            config=dict(settings),
            dir=str(run),
            id=_known_id(run, "wandb", resumed_at),
            resume="allow",
        )
        _keep_id(run, "wandb", self._run.id)

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures; W&B wants steps to rise, and takes several calls of one step."""
        self._run.log(dict(figures), step=step)

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        """Record an image."""
        pixels = image.permute(1, 2, 0).numpy()
        self._run.log({name: self._wandb.Image(pixels)}, step=step)

    def close(self) -> None:
        """Upload what is left."""
        self._run.finish()


class MLflow:
    """A run of `mlflow`; its own variables (MLFLOW_TRACKING_URI, ...) decide where to.

    Args:
        run: The run directory.
        title: What the run is called there.
        settings: The config, as plain data.
        resumed_at: The step that the run goes on from.
    """

    def __init__(
        self, run: Path, title: str, settings: Mapping[str, Any], resumed_at: int | None
    ) -> None:
        self._mlflow = importlib.import_module("mlflow")
        known = _known_id(run, "mlflow", resumed_at)
        if known is None and "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            self._mlflow.set_experiment(PROJECT)
        active = self._mlflow.start_run(run_id=known, run_name=title)
        _keep_id(run, "mlflow", active.info.run_id)
        if known is None:
            self._mlflow.log_params(_flat(settings))

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures."""
        self._mlflow.log_metrics(dict(figures), step=step)

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        """Record an image."""
        pixels = image.permute(1, 2, 0).numpy()
        self._mlflow.log_image(pixels, artifact_file=f"{name}-{step:08d}.png")

    def close(self) -> None:
        """End the run there."""
        self._mlflow.end_run()


_PACKAGES: dict[str, Callable[..., Sink]] = {"wandb": WeightsAndBiases, "mlflow": MLflow}


def require(names: Sequence[str]) -> None:
    """Refuse places whose package is not installed, before a run begins.

    Raises:
        UserError: Naming what to install.
    """
    for name in names:
        if name in _PACKAGES and importlib.util.find_spec(name) is None:
            raise UserError(
                f"tracking names {name!r}, but the package {name} is not installed; write "
                f"pip install 'halfstep[{name}]', or leave it out of tracking"
            )


def build(
    names: Sequence[str],
    run: Path,
    *,
    title: str,
    settings: Mapping[str, Any],
    resumed_at: int | None,
) -> list[Sink]:
    """Return the places that a config's `tracking` names.

    Args:
        names: Of tensorboard, wandb, mlflow.
        run: The run directory.
        title: What the run is called.
        settings: The config, as plain data.
        resumed_at: The step that the run goes on from, if it does.

    Raises:
        UserError: If a package is not installed.
    """
    require(names)
    sinks: list[Sink] = []
    for name in dict.fromkeys(names):
        if name == "tensorboard":
            sinks.append(Mortal(name, partial(TensorBoard, run, resumed_at)))
        else:
            make = partial(_PACKAGES[name], run, title, settings, resumed_at)
            sinks.append(Mortal(name, make))
    return sinks


class Mortal:
    """A sink that may fail at any time, and is warned of once and left alone from then on.

    Args:
        name: What the warning calls it.
        make: Makes the sink.
    """

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self._name = name
        self._sink: Sink | None = None
        with self._until_it_fails():
            self._sink = make()

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures."""
        if self._sink is not None:
            with self._until_it_fails():
                self._sink.scalars(figures, step)

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        """Record an image."""
        if self._sink is not None:
            with self._until_it_fails():
                self._sink.picture(name, image, step)

    def close(self) -> None:
        """Write out what is not yet."""
        if self._sink is not None:
            with self._until_it_fails():
                self._sink.close()

    @contextmanager
    def _until_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  (a service's client fails in ways it does not list)
            self._sink = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            warnings.warn(
                f"{self._name} gets no more figures of this run: {reason}; the run goes on",
                TrackingWarning,
                stacklevel=3,
            )


def _known_id(run: Path, name: str, resumed_at: int | None) -> str | None:
    """Return what a run that goes on was called by a service."""
    if resumed_at is None or not (run / _IDS).is_file():
        return None
    known: str | None = parse_json((run / _IDS).read_text(encoding="utf-8")).get(name)
    return known


def _keep_id(run: Path, name: str, known: str) -> None:
    file = run / _IDS
    others = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    write_atomically(file, json.dumps({**others, name: known}) + "\n")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat
