"""Resuming a run: finds the checkpoint, checks that it fits the config, and cleans the directory.

halfstep train digits --resume auto      # the run's newest undamaged checkpoint, if there is one
halfstep train digits --resume runs/digits/fp32-seed0/checkpoints/step-00000043.pt
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep import caller
from halfstep.errors import UserError
from halfstep.train.config import Config
from halfstep.train.config.files import flat
from halfstep.train.observers.early_stopping import waited
from halfstep.train.store import checkpoint, metrics_log, rotation
from halfstep.train.store.run_directory import AUTO, refuse_missing

if TYPE_CHECKING:
    from halfstep.train.config.run import RunConfig
    from halfstep.train.store.checkpoint import Checkpoint

_MAY_DIFFER = frozenset(
    {
        *("name", "description", "device", "log_every", "checkpoints", "tracking"),
        *("auto_microbatch", "doctor", "epochs", "observers", "model.checkpoint_activations"),
        *("data.cache", "data.workers", "distributed.strategy", "distributed.timeout"),
        *("data.cache_images", "data.cache_images_gigabytes", "data.cache_images_folder"),
    }
)
"""Fields and sections of the config that may change at a resume, because they do not affect the
trained weights (except for rounding differences of another device). `_refuse_inexact` decides
whether `epochs` may change."""


@dataclass(frozen=True, slots=True)
class Start:
    """The checkpoint that a run resumes from.

    Attributes:
        config: The config to train, with the behaviour of the release that started the run; see
            `_as_started`.
        checkpoint: The content of the checkpoint file, without parts in other files.
        file: Path of the checkpoint file.
        here: Whether the file is in the directory of the run itself.
    """

    config: RunConfig
    checkpoint: Checkpoint
    file: Path
    here: bool


def find(run: Path, wanted: str | None, config: RunConfig, processes: int = 1) -> Start | None:
    """Return the checkpoint to resume from, or None to start anew.

    Args:
        run: The run directory.
        wanted: The argument `resume` of `halfstep.train`.
        config: The config of the run.
        processes: Number of processes that continue the run. It may differ from the number that
            made the checkpoint, if a batch over all processes keeps its number of images.

    Raises:
        UserError: If the requested checkpoint does not exist, is damaged, or was made with another
            config.
    """
    if wanted is None:
        return None
    place = run if wanted == AUTO else Path(wanted)
    if wanted == AUTO or place.is_dir():
        newest = rotation.newest_whole(place)
        if newest is None and wanted == AUTO:
            return None
        if newest is None:
            raise UserError(
                f"{caller.name('resume')} is {wanted!r}, which holds no checkpoint to resume from; "
                f"write a file in the checkpoints of a run, or {caller.setting(resume=AUTO)}"
            )
        file, stored = newest
    else:
        refuse_missing(wanted)
        file, stored = place, checkpoint.look_into(place)
    with checkpoint.explained(file):
        config, stored = _as_started(config, stored)
        _refuse_another_config(stored, config, wanted, processes)
        _refuse_inexact(stored, config, file)
    here = file.parent.resolve() == checkpoint.path(run, "last").parent.resolve()
    return Start(config, stored, file, here)


def _as_started(config: RunConfig, stored: Checkpoint) -> tuple[RunConfig, Checkpoint]:
    """Adapt the config and the checkpoint of a run that an earlier release started.

    In the checkpoint's config, fields that the release did not have get their defaults. Release
    0.1.0 had no `drop_last` and trained on every batch of an epoch, so `drop_last` is set to False.
    """
    if ("objects" in stored.config) != ("objects" in type(config).model_fields):
        raise UserError(
            "one of the two runs is of a config, and the other of halfstep.fit; leave "
            f"{caller.name('resume')} out to start from the beginning"
        )
    if "drop_last" in stored.config or "drop_last" not in type(config).model_fields:
        before = {}
    else:
        before = {"drop_last": False}
        config = config.model_copy(update=before)
    known = type(config).model_validate(stored.config | before).model_dump(mode="json")
    return config, replace(stored, config=known)


def tidy(run: Path, start: Start) -> None:
    """Restore a run directory to its state at the checkpoint, so that nothing is recorded twice.

    If the checkpoint is in another directory, that directory stays unchanged. The checkpoint, and
    the best one of its run unless that is newer, are then linked or copied into `run`.
    """
    stored = start.checkpoint
    for left in run.rglob(".*.tmp"):
        left.unlink()
    # The directory gets the checkpoint as its own, so that a crash before the next loses nothing.
    first = rotation.path(run, stored.step)
    if first.resolve() != start.file.resolve():
        rotation.link(start.file, first)
    if not start.here:
        best = start.file.with_name("best.pt")
        if best.is_file() and checkpoint.look_into(best).step <= stored.step:
            rotation.link(best, checkpoint.path(run, "best"))
        return
    rotation.forget_after(run, stored.step)
    if stored.validated:
        # The earlier process may have been killed after it wrote the file but before it linked it.
        rotation.link(start.file, checkpoint.path(run, "last"))
        best = stored.progress["best"]
        if best is not None and best["epoch"] == stored.epoch:
            rotation.link(start.file, checkpoint.path(run, "best"))
    metrics_log.cut_after(run, step=stored.step, epochs=stored.epoch)


def _refuse_another_config(
    stored: Checkpoint, config: RunConfig, wanted: str, processes: int
) -> None:
    if processes != len(stored.ranks) and isinstance(config, Config):
        stored = _redistributed(stored, config, wanted, processes)
    here, there = (flat(settings) for settings in (config.model_dump(mode="json"), stored.config))
    for key in {**here, **there}:
        now, before = here.get(key), there.get(key)
        if now != before and not _may_differ(key, now, before):
            raise UserError(
                f"{caller.setting(resume=wanted)}: the checkpoint was made with "
                f"{key}={json.dumps(before)}, and the config says {json.dumps(now)}; write the "
                f"same, or leave {caller.name('resume')} out to start from the beginning"
            )


def _redistributed(stored: Checkpoint, config: Config, wanted: str, processes: int) -> Checkpoint:
    """Return the checkpoint as if this number of processes had made it.

    Raises:
        UserError: If a batch over all processes would not keep its number of images.
    """
    made_by = len(stored.ranks)
    images = stored.config.get("batch_size", config.batch_size) * made_by
    if config.batch_size * processes == images:
        return replace(stored, config={**stored.config, "batch_size": config.batch_size})
    fits = images // processes if images % processes == 0 else stored.config["batch_size"]
    needs = processes if images % processes == 0 else made_by
    raise UserError(
        f"{caller.setting(resume=wanted)}: the checkpoint was made by {made_by} processes with "
        f"batch_size={stored.config['batch_size']}, and now there are {processes} with "
        f"{config.batch_size}; write batch_size={fits} for {needs} processes, so that a batch "
        f"keeps its {images} images"
    )


def _may_differ(key: str, now: object, before: object) -> bool:
    # On the device, images are cropped and flipped by other random numbers.
    if key == "data.cache_images" and "device" in (now, before):
        return False
    return not _MAY_DIFFER.isdisjoint({key, key.partition(".")[0]})


def is_another_length(stored: Checkpoint, config: RunConfig) -> bool:
    """Tell whether the run of a checkpoint was configured with another number of epochs."""
    return bool(stored.config["epochs"] != config.epochs)


def _refuse_inexact(stored: Checkpoint, config: RunConfig, file: Path) -> None:
    """Refuse a changed number of epochs if a new run with that number would train differently.

    A cosine schedule, a one-cycle schedule and a warm-up over a share of the run depend on the
    number of epochs from the first step on. With another number from the checkpoint on, the run
    would match no config.
    """
    if not is_another_length(stored, config):
        return
    before, now = stored.config["epochs"], config.epochs
    again, run = caller.name("resume"), str(file.parent.parent)
    started = f"{again}: the run in {run!r} was started with epochs={before}"
    if stored.epoch >= now:
        raise UserError(
            f"{started} and has finished {stored.epoch}, and the config says {now}; write "
            f"{caller.fields({'epochs': max(before, stored.epoch + 1)})}"
        )
    reason = config.new_length_changes(min(before, now))
    if reason:
        weights = {"model.weights": str(file.with_name("last.pt")), "epochs": now - stored.epoch}
        raise UserError(
            f"{started}, and {reason}, so it cannot be extended to {now}; write "
            f"{caller.setting(tag='NEW')} and {caller.fields(weights)} without {again} for a new "
            f"run that starts from its weights, or {again} with epochs={before}"
        )
    if config.max_steps is not None and stored.step >= config.max_steps:
        raise UserError(
            f"{started} and was ended by max_steps={config.max_steps}, so more epochs would change "
            f"nothing; write {again} with epochs={before}"
        )
    stopping = config.early_stopping
    if stopping is not None and waited(stored.observers) >= stopping.patience:
        raise UserError(
            f"{started} and was stopped early after {stored.epoch}, so more epochs would change "
            f"nothing; write {again} with epochs={before}"
        )
