"""`halfstep.fit`: the trainer's loop for the objects of a program."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from halfstep import caller
from halfstep.errors import UserError
from halfstep.train.build.schedules import Schedules
from halfstep.train.build.setup import Setup, engine_of, steps_of, steps_per_epoch
from halfstep.train.config import files
from halfstep.train.config.errors import Source
from halfstep.train.loop import loop
from halfstep.train.objects.batches import LoaderBatches, LoaderData, length_of
from halfstep.train.objects.config import FitConfig
from halfstep.train.objects.functions import monitor_of, named_metrics, takes_model
from halfstep.train.objects.task import OwnTask
from halfstep.train.python import plain, spec
from halfstep.train.store import checkpoint, metrics_log, run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from halfstep.recipe import Recipe
    from halfstep.train.objects.config import Mode
    from halfstep.train.run.observer import Observer
    from halfstep.train.store.run_directory import Summary


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of `halfstep.fit`.

    Attributes:
        run: The run directory.
        summary: The summary, as in `summary.json`.
    """

    run: Path
    summary: Summary

    @property
    def status(self) -> str:
        """Return "finished", or how the run failed; `summary.error` says why."""
        return self.summary.status

    @property
    def best(self) -> dict[str, float]:
        """Loss and metrics of the best validation."""
        return self.summary.best_metrics

    @property
    def last(self) -> dict[str, float]:
        """Loss and metrics of the last validation."""
        return self.summary.final_metrics

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`; `kind` is "train" or "val"."""
        return metrics_log.read(self.run)

    def best_weights(self) -> dict[str, torch.Tensor]:
        """Return the state dict of the best validation, in fp32 on the CPU.

        With `average`, it has the averaged weights, which were validated.

        Raises:
            ValueError: If no epoch was validated, or if the checkpoint is damaged.
        """
        return checkpoint.load(checkpoint.path(self.run, "best")).weights


class FitCall(caller.Python):
    """Calls of `halfstep.fit`: most settings are arguments, and the others are in `overrides`."""

    def fields(self, values: Mapping[str, Any]) -> str:
        """Return arguments such as `epochs=3`, and others in `overrides`."""
        if set(values) <= set(inspect.signature(fit).parameters):
            return self.setting(values)
        return super().fields(values)


@caller.through(FitCall())
def fit(  # noqa: PLR0913  (a training has as many settings)
    model: nn.Module,
    optimizer: Optimizer,
    train_loader: Iterable[Any],
    val_loader: Iterable[Any],
    *,
    loss: Callable[[Any, Any], torch.Tensor],
    epochs: int,
    metrics: Any = None,
    monitor: str = "loss",
    mode: Mode | None = None,
    recipe: str | Path | Mapping[str, Any] | Recipe = "fp32",
    scheduler: LRScheduler | ReduceLROnPlateau | None = None,
    accumulate: int = 1,
    clip_norm: float | None = None,
    average: float | None = None,
    patience: int | None = None,
    batches_per_epoch: int | None = None,
    seed: int = 0,
    device: str | torch.device | None = None,
    observers: Sequence[Observer] = (),
    overrides: Mapping[str, Any] | None = None,
    name: str = "fit",
    tag: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> Fitted:
    """Train any model under a recipe, with the loop of `halfstep.train`, in this process.

    ```python
    fitted = halfstep.fit(
        model, optimizer, train_loader, val_loader,
        loss=nn.functional.mse_loss, metrics={"mae": nn.functional.l1_loss},
        recipe="fp16", epochs=10,
    )
    print(fitted.best)
    ```

    The run writes a run directory: checkpoints, metrics, a log, doctor's diagnosis if it fails.

    Before the GPU, rehearse the run on a CPU: `device="cpu", overrides={"max_steps": 20}` takes the
    same steps, and emulates half precision, so that an overflow, a wrong batch or a checkpoint that
    cannot be written shows itself there. Times and memory are not those of a GPU.

    Args:
        model: The model. It is moved to the device, and has the last weights at the end.
        optimizer: An optimizer over the model's parameters.
        train_loader: Batches for training: a DataLoader, or anything that gives a new iterator in
            each epoch. Its tensors are moved to the device.
        val_loader: Batches for validation, likewise.
        loss: A function of the model's outputs and the targets, for batches (inputs, targets). Or,
            if its first parameter is called `model`, of the model and the whole batch, which can
            be anything. It returns the mean over the batch.
        epochs: Number of passes over `train_loader`.
        metrics: Figures of a validation besides the loss: by name, or in a list. Each is a
            function like `loss` that returns a number, the mean over the batch; or an object with
            `update`, `compute` and `reset`, such as those of torchmetrics.
        monitor: What chooses the best validation: "loss" or the name of a metric.
        mode: "min" or "max", whether less or more of `monitor` is better; needed for functions
            other than the loss and "accuracy".
        recipe: The recipe, in any form that `halfstep.recipe` takes.
        scheduler: Stepped after every optimizer step that was not skipped; `ReduceLROnPlateau`
            after every validation, with the value of `monitor`.
        accumulate: Number of batches whose gradients are accumulated for one optimizer step.
        clip_norm: Maximum norm of the gradients.
        average: Decay of a moving average of the weights, such as 0.999, that is validated.
        patience: Number of validations without improvement after which the run ends early.
        batches_per_epoch: Number of batches of an epoch, for a `train_loader` without a length.
        seed: Seed for dropout and the order of the batches. It does not change the model's weights.
        device: The device, such as "cpu" or "cuda:1"; by default that of the model if it is not on
            the CPU, or a GPU if there is one.
        observers: Observers of the run.
        overrides: Further settings of the loop, named as in a config: `checkpoints.every_steps`,
            `val_every`, `log_every`, `max_steps`, `on_nonfinite`, `doctor`, `tracking`.
        name: Name of what is trained, for the run directory.
        tag: Last part of the run directory's name; the recipe and seed by default.
        out: The run directory; `runs/NAME/TAG` by default.
        resume: "auto", or the path of a checkpoint or a run directory. "auto" resumes from the
            newest complete checkpoint in the run directory, or starts anew if there is none.
        overwrite: Whether to replace a run that is already in the directory.
        quiet: Whether to print no progress.

    Returns:
        The metrics of the best and the last validation, their history, and the directory. There is
            a result also if the run fails numerically: its `status` says how.

    Raises:
        ValueError: If an argument or the directory is invalid; nothing was trained. Or if there is
            not enough memory, or a file cannot be written.
        TypeError: If the model or the optimizer is something else.
        KeyboardInterrupt: After an interruption during training. Use `resume` to continue.
    """
    refuse_other_types(model, optimizer, train_loader, val_loader, loss, scheduler)
    named = named_metrics(metrics)
    watched = monitor_of(monitor, mode, named)
    config = _config(
        {
            "name": name,
            "recipe": spec(recipe),
            "seed": seed,
            "device": device_of(model, device),
            "epochs": epochs,
            "accumulate": accumulate,
            "clip_norm": clip_norm,
            "average": None if average is None else {"decay": average},
            "early_stopping": None if patience is None else {"patience": patience},
            "objects": {
                "model": _kind(model),
                "optimizer": _kind(optimizer),
                "loss": _kind(loss),
                "monitor": f"{'lowest' if watched.less_is_better else 'highest'} {watched.name}",
                **({} if scheduler is None else {"scheduler": _kind(scheduler)}),
            },
        },
        overrides,
    )
    built: list[Setup] = []

    def build(
        config: FitConfig, device: torch.device, weights: Mapping[str, Any] | None, *, new: bool
    ) -> Setup:
        del weights, new  # the loop loads a checkpoint into the engine
        pairs = not takes_model(loss)
        batches = LoaderBatches(
            train_loader,
            "train_loader",
            paired=pairs,
            seed=config.seed,
            length=batches_per_epoch or length_of(train_loader, "train_loader"),
        )
        held_out = LoaderBatches(
            val_loader, "val_loader", paired=pairs, seed=config.seed, length=None
        )
        torch.manual_seed(config.seed)
        model.to(device)
        if optimizer.state:  # such as that of Adagrad from its construction on
            optimizer.load_state_dict(optimizer.state_dict())  # moves it to the parameters
        if isinstance(loss, nn.Module):
            loss.to(device)
        if not model.training:
            model.train()
        schedule = _schedules(scheduler, watched.name)
        task = OwnTask(LoaderData(batches, held_out), loss, not pairs, named, watched, device)
        engine = engine_of(config, model, optimizer, schedule)
        steps = steps_of(config, steps_per_epoch(batches, config.accumulate))
        built.append(Setup(engine, device, task, schedule, steps))
        return built[-1]

    run = Path(out) if out is not None else run_directory.place(config, tag)
    summary = loop.fit(
        config,
        run,
        build,
        tag=tag,
        overwrite=overwrite,
        quiet=quiet,
        go_on=None if resume is None else str(resume),
        observers=observers,
    )
    if not built:  # the run was over already, so that nothing was trained
        model.load_state_dict(checkpoint.load(checkpoint.path(run, "last")).model)
    return Fitted(run, summary)


def _config(settings: Mapping[str, Any], overrides: Any) -> FitConfig:
    """Return the settings of the run: the arguments, then `overrides`."""
    if not (overrides is None or isinstance(overrides, Mapping)):
        raise TypeError(
            f"overrides is {overrides!r}; allowed: a mapping of fields; write "
            f"{caller.fields({'checkpoints.every_steps': 100})}"
        )
    overlay = files.parse_options(plain(overrides or {}))
    twice = next((key for key in overlay if key in settings and key in _OF_ARGUMENTS), None)
    if twice is not None:
        raise UserError(f"overrides has {twice!r}, which is an argument of fit; write it there")
    values = files.merge(plain(settings), overlay)
    sources = [Source("fit", values), Source("overrides", overlay, is_config=False)]
    return files.check_as(FitConfig, values, sources)


_OF_ARGUMENTS = {
    *("name", "recipe", "seed", "device", "epochs", "accumulate", "clip_norm", "average"),
    *("early_stopping", "objects"),
}


def refuse_other_types(
    model: Any, optimizer: Any, train_loader: Any, val_loader: Any, loss: Any, scheduler: Any
) -> None:
    """Refuse arguments of `fit` that have the wrong type.

    Raises:
        TypeError: If one has; the message is one line.
        UserError: If a loader can be read only once, or the scheduler has another optimizer.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}; allowed: a torch.nn.Module")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; allowed: a torch.optim.Optimizer, such as "
            "torch.optim.AdamW(model.parameters())"
        )
    for argument, loader in (("train_loader", train_loader), ("val_loader", val_loader)):
        if isinstance(loader, Iterator):
            raise UserError(
                f"{argument} is a {type(loader).__name__}, which can be read only once; allowed: a "
                "DataLoader, a list of batches, or an object whose __iter__ begins anew"
            )
        if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
            raise TypeError(
                f"{argument} is a {type(loader).__name__}; allowed: a DataLoader, a list of "
                "batches, or another iterable of batches"
            )
    if not callable(loss):
        raise TypeError(
            f"loss is {loss!r}; allowed: a function of the outputs and the targets, or of `model` "
            "and batch, such as torch.nn.functional.cross_entropy"
        )
    if not (scheduler is None or isinstance(scheduler, LRScheduler | ReduceLROnPlateau)):
        raise TypeError(
            f"scheduler is a {type(scheduler).__name__}; allowed: one of torch.optim.lr_scheduler"
        )
    if scheduler is not None and scheduler.optimizer is not optimizer:
        raise UserError(
            "scheduler is one of another optimizer; write it with the optimizer that fit gets"
        )


def _schedules(scheduler: LRScheduler | ReduceLROnPlateau | None, monitor: str) -> Schedules:
    if isinstance(scheduler, ReduceLROnPlateau):
        return Schedules(None, scheduler, metric=monitor)
    return Schedules(scheduler)


def device_of(model: nn.Module, device: str | torch.device | None) -> str:
    """Return the name of the device of a run: the given one, or by default that of the model."""
    if device is not None:
        return str(device)
    first = next(model.parameters(), None)
    return "auto" if first is None or first.device.type == "cpu" else str(first.device)


def _kind(thing: Any) -> str:
    """Return the name of a function or of an object's class, with the parameters of a model."""
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    name = str(getattr(kind, "__qualname__", kind))
    if isinstance(thing, nn.Module) and (count := sum(p.numel() for p in thing.parameters())):
        return f"{name} with {count} parameters"
    return name
