"""Sends the figures of a run to TensorBoard and to tracking services, besides `metrics.jsonl`.

Services need packages of their own, which are checked before a run begins. If a service fails
later, for example without a network, tracking by that service ends and the run continues. The
services are called through `accelerate.tracking`; TensorBoard is called directly.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import threading
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from halfstep.errors import UserError, in_a_line
from halfstep.files import parse_json, write_atomically
from halfstep.train.config.files import flat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

PROJECT = "halfstep"
_IDS = "tracking.json"
_OF_PROCESSES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_EVERY_S = 1.0
"""Minimum seconds between two writes to an event file: many figures cost little more than one."""


class TrackingWarning(UserWarning):
    """A sink failed and gets no more figures; the run continues."""


class Sink(Protocol):
    """A destination of the figures of a run."""

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        """Record figures such as "train/loss" of an optimizer step."""

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        """Record an image, uint8, shape (3, height, width)."""

    def close(self) -> None:
        """Write the remaining figures, and close the sink."""


class TensorBoard:
    """Event files in the run directory.

    Args:
        run: The run directory.
        resumed_at: The step that the run was resumed at: TensorBoard hides earlier events after
            that step. None for a new run.
    """

    def __init__(self, run: Path, resumed_at: int | None) -> None:
        # Imported here, because the import is slow and runs without TensorBoard do not need it.
        from torch.utils.tensorboard.writer import SummaryWriter

        if getattr(threading.excepthook, "func", None) is not _print_unless_tensorboard:
            threading.excepthook = partial(_print_unless_tensorboard, threading.excepthook)
        purge = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=purge)
        self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._waiting: list[tuple[Mapping[str, float], int, float]] = []
        self._written = -math.inf

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        self._waiting.append((figures, step, time.time()))
        if time.monotonic() - self._written >= _EVERY_S:
            self._write()

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        self._writer.add_image(name, image, step)

    def close(self) -> None:
        try:
            self._write()
        finally:
            self._writer.close()

    def _write(self) -> None:
        """Write the waiting figures: one event for all figures of a step, not one for each."""
        self._written = time.monotonic()
        waiting, self._waiting = self._waiting, []
        file: Any = self._writer.file_writer  # torch types it as None
        for figures, step, seconds in waiting:
            values = [self._summary.Value(tag=tag, simple_value=v) for tag, v in figures.items()]
            file.add_summary(self._summary(value=values), step, seconds)


def _print_unless_tensorboard(
    before: Callable[[threading.ExceptHookArgs], object], ended: threading.ExceptHookArgs
) -> None:
    """Print the exception that ended a thread, except for TensorBoard's writing thread.

    TensorBoard's writer raises that exception again at its next use, and `_Guarded` then warns.
    """
    if not type(ended.thread).__module__.startswith("tensorboard."):
        before(ended)


@dataclass(frozen=True, slots=True)
class _Service:
    """How to construct accelerate's tracker for a service.

    Attributes:
        package: The Python package of the service.
        tracker: Name of the class in `accelerate.tracking`.
        title: Name of the argument for the run's title; None if there is none.
        known: Name of the argument for the id of a resumed run.
        id_of: Returns the id of the service's run object.
        again: Further arguments for a resumed run.
    """

    package: str
    tracker: str
    title: str | None
    known: str
    id_of: Callable[[Any], str]
    again: Mapping[str, Any] = field(default_factory=dict)


_GOES_ON = {"resume": "allow"}
_SERVICES = {
    "wandb": _Service("wandb", "WandBTracker", "name", "id", lambda run: run.id, again=_GOES_ON),
    "mlflow": _Service(
        "mlflow", "MLflowTracker", "run_name", "run_id", lambda run: run.info.run_id
    ),
    "swanlab": _Service(
        "swanlab", "SwanLabTracker", "experiment_name", "id", lambda run: run.id, again=_GOES_ON
    ),
    # trackio identifies a run by its name. The title is not passed, as it may be in use already.
    "trackio": _Service(
        "trackio", "TrackioTracker", None, "name", lambda run: run.name, again=_GOES_ON
    ),
    "comet": _Service(
        "comet_ml", "CometMLTracker", None, "experiment_key", lambda run: run.get_key()
    ),
    "clearml": _Service(
        "clearml", "ClearMLTracker", "task_name", "continue_last_task", lambda task: task.id
    ),
}


class Tracked:
    """A run at a tracking service, whose own environment variables set its destination.

    Examples of these variables are WANDB_MODE and MLFLOW_TRACKING_URI. See `build` for the
    arguments.
    """

    def __init__(
        self, name: str, run: Path, title: str, settings: Mapping[str, Any], resumed_at: int | None
    ) -> None:
        from accelerate import tracking

        service = _SERVICES[name]
        known = _known_id(run, name, resumed_at)
        given: dict[str, Any] = {} if service.title is None else {service.title: title}
        if known is not None:
            given |= {**service.again, service.known: known}
        _first_of_accelerate()
        project = os.environ.get(f"{name.upper()}_PROJECT", PROJECT)
        self._tracker = getattr(tracking, service.tracker)(project, **given)
        self._tracker.start()
        _keep_id(run, name, service.id_of(self._tracker.tracker))
        if known is None:
            self._tracker.store_init_configuration(flat(settings))

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        self._tracker.log(dict(figures), step=step)

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        """Record an image, if accelerate or mlflow supports that for the service."""
        pixels = image.permute(1, 2, 0).numpy()
        if hasattr(self._tracker, "log_images"):
            self._tracker.log_images({name: [pixels]}, step=step)
        elif self._tracker.name == "mlflow":  # accelerate sends only matplotlib figures to mlflow
            file = f"{name}-{step:08d}.png"
            importlib.import_module("mlflow").log_image(pixels, artifact_file=file)

    def close(self) -> None:
        self._tracker.finish()


def _first_of_accelerate() -> None:
    """Hide the other processes from accelerate, so that it logs from this process alone.

    Otherwise accelerate would join the processes, set their thread counts, and wait for the others.
    """
    from accelerate import PartialState

    hidden = {name: os.environ.pop(name) for name in _OF_PROCESSES if name in os.environ}
    try:
        PartialState(cpu=True)
    finally:
        os.environ.update(hidden)


def require(names: Sequence[str]) -> None:
    """Refuse tracking services whose packages are not installed."""
    for name in names:
        for package in (_SERVICES[name].package, "accelerate") if name in _SERVICES else ():
            if importlib.util.find_spec(package) is None:
                raise UserError(
                    f"tracking names {name!r}, but the package {package} is not installed; write "
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
    """Return the sinks that the field `tracking` of a config names.

    Args:
        names: "tensorboard" or names of services.
        run: The run directory.
        title: The title of the run.
        settings: The config, as plain data.
        resumed_at: The step that the run was resumed at; None for a new run.
    """
    require(names)
    own = {"tensorboard": partial(TensorBoard, run, resumed_at)}
    return [
        _Guarded(name, own.get(name) or partial(Tracked, name, run, title, settings, resumed_at))
        for name in dict.fromkeys(names)
    ]


class _Guarded:
    """Wraps a sink: the first failure causes a warning, and the sink is not called again."""

    def __init__(self, name: str, make: Callable[[], Sink]) -> None:
        self._name = name
        self._sink: Sink | None = None
        with self._until_it_fails():
            self._sink = make()

    def scalars(self, figures: Mapping[str, float], step: int) -> None:
        self._call("scalars", figures, step)

    def picture(self, name: str, image: torch.Tensor, step: int) -> None:
        self._call("picture", name, image, step)

    def close(self) -> None:
        self._call("close")

    def _call(self, method: str, *given: Any) -> None:
        if self._sink is not None:
            with self._until_it_fails():
                getattr(self._sink, method)(*given)

    @contextmanager
    def _until_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  (a service's client fails in ways it does not list)
            self._sink = None
            warnings.warn(
                f"{self._name} gets no more figures of this run: {in_a_line(error)}; "
                "the run continues",
                TrackingWarning,
                stacklevel=4,
            )


def _known_id(run: Path, name: str, resumed_at: int | None) -> str | None:
    """Return the id that a service gave to a resumed run; None for a new run."""
    if resumed_at is None or not (run / _IDS).is_file():
        return None
    known: str | None = parse_json((run / _IDS).read_text(encoding="utf-8")).get(name)
    return known


def _keep_id(run: Path, name: str, known: str) -> None:
    file = run / _IDS
    others = parse_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    write_atomically(file, json.dumps({**others, name: known}) + "\n")
