"""Loads the model of a run for prediction, evaluation on other data and export.

It needs only the config and the checkpoint of the run, not the data of the run.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.optim import SGD

from halfstep.engine import Engine
from halfstep.errors import UserError
from halfstep.train.build import models
from halfstep.train.config.data import ColumnsConfig, CsvConfig
from halfstep.train.config.files import load
from halfstep.train.data.pipeline import batch_augment
from halfstep.train.store import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch
    from torch import nn

    from halfstep.train.config import Config
    from halfstep.train.config.files import Overrides
    from halfstep.train.store.checkpoint import Checkpoint, Which


@dataclass(frozen=True, slots=True)
class Trained:
    """The model of a run, with its checkpoint and preprocessing.

    Attributes:
        config: The config of the run.
        stored: The checkpoint.
        model: The model with the validated weights, in fp32 and eval mode, on the CPU.
        classes: Names of the classes, in the order of the logits.
        image_shape: Channels, height and width of the model's input.
        normalisation: Mean and standard deviation of each channel, for pixel values from 0 to 1.
    """

    config: Config
    stored: Checkpoint
    model: nn.Module
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    normalisation: tuple[tuple[float, ...], tuple[float, ...]]

    @contextmanager
    def classifier(self, device: torch.device) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
        """Yield a function from uint8 images (N, channels, height, width) to fp32 logits.

        It runs the forward pass under the run's recipe, as in the run's validation.
        """
        self.model.to(device)
        # The engine requires an optimizer; this one is never stepped.
        idle = SGD(self.model.parameters(), lr=1.0)

        with Engine(self.model, idle, recipe=self.config.build_recipe()) as engine:

            def classify(images: torch.Tensor) -> torch.Tensor:
                images = images.to(device, non_blocking=True)
                logits = engine.model(batch_augment.normalise(images, *self.normalisation))
                return logits.float()  # type: ignore[no-any-return]  # a module returns Any

            with engine.evaluating():
                yield classify


def config_of(run: Path, device: str | None = None, options: Overrides = ()) -> Config:
    """Return the config of a run, with overrides."""
    config_file = run / "config.yaml"
    if not config_file.is_file():
        problem = "does not exist"
        if run.exists():
            problem = "holds no config.yaml" if run.is_dir() else "is a file"
        raise UserError(
            f"{str(run)!r} is not a run directory: it {problem}; write one that halfstep train "
            "wrote, "
            "such as runs/digits/fp32-seed0"
        )
    return load(str(config_file), options, {"device": device})


def columns_of(run: Path, columns: ColumnsConfig | None) -> ColumnsConfig:
    """Return the column names for a CSV file: `columns`, or by default those of the run's data."""
    if columns is not None:
        return columns
    data = config_of(run).data
    return data.columns if isinstance(data, CsvConfig) else ColumnsConfig()


def open_run(run: Path, which: Which = "best", device: str | None = None) -> Trained:
    """Load the model of a run from its best or last checkpoint."""
    config = config_of(run, device)
    stored = checkpoint.load(checkpoint.path(run, which))
    channels, height, width = stored.preprocessing["image_shape"]
    shape = (channels, height, width)
    model = models.build(
        config.model, classes=len(stored.classes), image_shape=shape, initial_weights=False
    )
    otherwise = f"the weights of {str(run)!r} do not fit its model {config.model.name!r}"
    models.load(model, stored.weights, otherwise)
    normalisation = (tuple(stored.preprocessing["mean"]), tuple(stored.preprocessing["std"]))
    return Trained(config, stored, model.eval(), tuple(stored.classes), shape, normalisation)
