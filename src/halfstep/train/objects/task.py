"""The task of a program's own objects: any loss, any batches, any metrics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from halfstep.errors import UserError
from halfstep.feed.prefetching import prefetch
from halfstep.formats.dtypes import HALVES
from halfstep.train.objects.batches import samples_of
from halfstep.train.objects.functions import Accumulated, Mean, accumulates
from halfstep.train.processes.processes import ALONE
from halfstep.train.task.figures import Figures
from halfstep.train.task.in_step import in_step
from halfstep.train.task.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from halfstep.engine import Engine
    from halfstep.train.objects.batches import LoaderData
    from halfstep.train.task.figures import Monitor


@dataclass(frozen=True, slots=True)
class OwnTask(Task):
    """The task of a program's own objects.

    Attributes:
        data: The batches.
        loss: The loss; see `functions`.
        loss_takes_model: Whether the loss is a function of model and batch.
        metrics: The metrics by name.
        monitor: The figure that chooses the best validation.
        device: The device of the model.
    """

    data: LoaderData
    loss: Callable[[Any, Any], torch.Tensor]
    loss_takes_model: bool
    metrics: Mapping[str, Any]
    monitor: Monitor
    device: torch.device

    def size(self, targets: Any) -> int:
        """Return the number of samples of a batch; see `samples_of`."""
        return samples_of(targets)

    def forward(self, model: nn.Module, inputs: Any, targets: Any) -> tuple[torch.Tensor, Any]:
        """Return the loss of a batch, and the outputs if the loss is a function of them."""
        if self.loss_takes_model:
            return _checked(self.loss(model, targets)), None
        outputs = model(inputs)
        return _checked(self.loss(outputs, targets)), outputs

    def obeying(self, train: Any, val: Any) -> OwnTask:
        """Return the task with other splits, which wrap its own."""
        return replace(self, data=replace(self.data, train=train, val=val))

    def validate(self, engine: Engine, compiled_for: int | None = None) -> Figures:
        """Validate the model; see `Task.validate`."""
        del compiled_for
        model = engine.bare_model
        measures: dict[str, Mean | Accumulated] = {"loss": Mean(self.loss, "loss")}
        for name, metric in self.metrics.items():
            where = f"metrics[{name!r}]"
            measures[name] = (
                Accumulated(metric, where, self.device)
                if accumulates(metric)
                else Mean(metric, where)
            )
        of_outputs = [measure for measure in measures.values() if not measure.takes_model]
        of_model = [measure for measure in measures.values() if measure.takes_model]
        with engine.evaluating():
            for portion in prefetch(in_step(ALONE, self.data.val), self.device):
                inputs, targets = self.data.prepare(*portion.batch, device=self.device, train=False)
                for measure in of_model:
                    measure.update(model, targets, portion.counted)
                if not of_outputs:
                    continue
                outputs = _widened(model(inputs))
                with torch.autocast(self.device.type, enabled=False):
                    for measure in of_outputs:
                        measure.update(outputs, targets, portion.counted)
        figures = {name: measure.compute() for name, measure in measures.items()}
        return Figures(figures.pop("loss"), figures.pop("accuracy", None), metrics=figures)


def _widened(outputs: Any) -> Any:
    """Return outputs with half tensors in fp32, in the same structure."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.float() if tensor.dtype in HALVES else tensor

    if isinstance(outputs, torch.Tensor):
        return widen(outputs)
    return tree_map_only(torch.Tensor, widen, outputs)


def _checked(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = f" of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
        raise UserError(
            f"the loss returned a {type(loss).__name__}{shape}; allowed: a tensor of one number, "
            "such as the mean over the batch"
        )
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise UserError(
            "the loss has no gradient; allowed: a loss that depends on a parameter of the model "
            "that is trained"
        )
    return loss
