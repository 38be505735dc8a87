"""The loss and the metrics of a program: functions of outputs and targets, or of model and batch.

A function whose first parameter is called `model` gets the model and the whole batch, as the loss
of `halfstep advise --loss` does. Any other function gets the model's outputs and the targets, and
batches are then pairs (inputs, targets).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from halfstep.errors import UserError, closest
from halfstep.train.task.figures import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable

_TAKEN = ("loss", "epoch", "step")


def takes_model(function: Any) -> bool:
    """Tell whether a function is one of model and batch, and not of outputs and targets."""
    call = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # a function in C
        return False
    return bool(parameters) and parameters[0].name == "model"


class Mean:
    """The mean of a function over the samples of a validation.

    Args:
        function: Returns the mean of a batch, as a number or a tensor of one number.
        name: The name of the function in messages.
    """

    def __init__(self, function: Callable[[Any, Any], Any], name: str) -> None:
        self.takes_model = takes_model(function)
        self._function, self._name = function, name
        self._sum: Any = 0.0
        self._samples = 0

    def update(self, first: Any, second: Any, samples: int) -> None:
        """Add a batch, without waiting for the device."""
        value = self._function(first, second)
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise UserError(
                    f"{self._name} returned a tensor of shape {list(value.shape)}; allowed: one "
                    "number, the mean over the batch"
                )
            value = value.detach().reshape(()).float()
        elif not isinstance(value, int | float):
            raise UserError(
                f"{self._name} returned a {type(value).__name__}; allowed: one number, the mean "
                "over the batch"
            )
        self._sum = self._sum + value * samples
        self._samples += samples

    def compute(self) -> float:
        """Return the mean; nan without samples."""
        return float(self._sum) / self._samples if self._samples else math.nan


class Accumulated:
    """A metric that accumulates by itself, such as those of torchmetrics.

    Args:
        metric: Has `update(outputs, targets)`, `compute()` and `reset()`.
        name: The name of the metric in messages.
        device: The device of the outputs.
    """

    takes_model = False

    def __init__(self, metric: Any, name: str, device: torch.device) -> None:
        self._metric = metric.to(device) if hasattr(metric, "to") else metric
        self._name = name
        self._metric.reset()

    def update(self, outputs: Any, targets: Any, samples: int) -> None:
        """Add a batch."""
        del samples
        self._metric.update(outputs, targets)

    def compute(self) -> float:
        """Return the value over all batches, and start anew."""
        value = self._metric.compute()
        self._metric.reset()
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{self._name}.compute() returned a {type(value).__name__}; allowed: one number"
            ) from error


def accumulates(metric: Any) -> bool:
    """Tell whether a metric is an object as torchmetrics has them, and not a function."""
    return all(callable(getattr(metric, method, None)) for method in ("update", "compute", "reset"))


def named_metrics(given: Any) -> dict[str, Any]:
    """Return metrics by name.

    Args:
        given: A mapping of names to metrics, a list of metrics, one metric, or None.

    Raises:
        UserError: If something is neither a function nor a metric, or if a name is not allowed.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) and hasattr(given, "items"):
        given = dict(given.items())  # torchmetrics.MetricCollection
    if not isinstance(given, Mapping):
        listed = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
        given = {_name(function): function for function in listed}
    for name, metric in given.items():
        if not isinstance(name, str) or name in _TAKEN:
            raise UserError(
                f"metrics has the name {name!r}; allowed: a text, except {', '.join(_TAKEN)}"
            )
        if not (callable(metric) or accumulates(metric)):
            raise UserError(
                f"metrics[{name!r}] is a {type(metric).__name__}; allowed: a function of outputs "
                "and targets (or of `model` and batch) that returns a number, or an object with "
                "update, compute and reset"
            )
    return dict(given)


def _name(metric: Any) -> str:
    return str(getattr(metric, "__name__", type(metric).__name__))


def monitor_of(name: str, mode: Any, metrics: Mapping[str, Any]) -> Monitor:
    """Return the figure that chooses the best validation.

    Args:
        name: "loss", or the name of a metric.
        mode: "min", "max", or None if it is known: for the loss, for accuracy, and for a metric of
            torchmetrics, which says which is better.
        metrics: The metrics by name.

    Raises:
        UserError: If there is no such metric, or if it is not known whether more of it is better.
    """
    known = ["loss", *metrics]
    if name not in known:
        raise UserError(f"monitor is {name!r}; allowed: {', '.join(known)}{closest(name, known)}")
    if mode not in {None, "min", "max"}:
        raise UserError(f"mode is {mode!r}; allowed: 'min', 'max' or None")
    higher = getattr(metrics.get(name), "higher_is_better", None)
    if name in {"loss", "accuracy"}:
        higher = name == "accuracy"
    if mode is not None:
        higher = mode == "max"
    if higher is None:
        raise UserError(
            f"monitor is {name!r}, and whether more of it is better is not known; write "
            "mode='max' or mode='min'"
        )
    return Monitor(name, less_is_better=not higher)
