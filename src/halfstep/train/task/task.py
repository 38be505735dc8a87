"""What a run trains: the seam between the loop and the data, the model and the loss.

The loop knows batches of inputs and targets, how they become a loss, and the figures of a
validation. It does not know what they are: `classification` is the task of a config, and
`objects.task` that of the objects of a program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

    from halfstep.engine import Engine
    from halfstep.train.task.figures import Figures, Monitor


class Split(Protocol):
    """The batches of a split; `data.pipeline.batches` describes the methods."""

    @property
    def images(self) -> int | None:
        """Number of samples in the split; None if it is unknown."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def epoch(self, number: int = 1, start: int = 0) -> Iterator[tuple[Any, Any]]:
        """Iterate over inputs and targets of one epoch, from batch `start` on."""

    def idle(self, number: int) -> bool:
        """Tell whether this process has no part of a training batch."""

    def size(self, targets: Any) -> int:
        """Return the number of samples that a batch with these targets has."""


class TaskData(Protocol):
    """The data of a task; `data.pipeline.data` describes the methods."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if the task has none."""

    @property
    def train(self) -> Split:
        """The training split."""

    @property
    def val(self) -> Split:
        """The validation split."""

    def preprocessing(self) -> dict[str, Any]:
        """Return what a checkpoint records of the inputs."""

    def prepare(
        self,
        inputs: Any,
        targets: Any,
        *,
        device: torch.device,
        train: bool,
        epoch: int = 1,
        number: int = 0,
    ) -> tuple[Any, Any]:
        """Copy a batch to the device, and process it there."""


class Task(ABC):
    """What a run trains.

    Attributes:
        data: The batches.
        monitor: The figure of a validation that decides which checkpoint is the best.
        unit: What a batch contains, in the plural.
        classifies: Whether outputs and targets are logits and classes of images, so that hits are
            counted in training.
    """

    data: TaskData
    monitor: Monitor
    unit: str = "samples"
    classifies: bool = False

    @abstractmethod
    def size(self, targets: Any) -> int:
        """Return the number of samples that a batch with these targets has."""

    @abstractmethod
    def forward(self, model: nn.Module, inputs: Any, targets: Any) -> tuple[torch.Tensor, Any]:
        """Return the mean loss of a batch, a scalar, and the model's outputs; None without any."""

    @abstractmethod
    def validate(self, engine: Engine, compiled_for: int | None = None) -> Figures:
        """Validate the model of an engine on the validation split.

        The forward pass runs under the recipe. The loss and the metrics are computed in fp32 from
        its outputs, so that computing them cannot overflow in a narrow format.

        Args:
            engine: The engine.
            compiled_for: The number of samples that the model is compiled for; see `Setup`.
        """

    @abstractmethod
    def obeying(self, train: Any, val: Any) -> Task:
        """Return the task with other splits, which wrap its own."""
