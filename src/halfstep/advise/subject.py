"""What advice is wanted on: a model with its loss, its batches and its optimizer."""

from __future__ import annotations

import copy
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from halfstep.errors import UserError, failing
from halfstep.train import data
from halfstep.train.build import models, optim
from halfstep.train.config import files, import_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn
    from torch.optim import Optimizer

    from halfstep.train.config import Config

BATCHES = 8


@dataclass(frozen=True, slots=True)
class Subject:
    """What advice is wanted on. None of it is changed: what runs are copies.

    Attributes:
        name: What it is called in print.
        model: In fp32, out of any wrapper, on its device.
        loss: Returns the mean loss, a scalar, of a model on a batch.
        batches: Of training; eight are used, in turns if there are fewer.
        optimizer: Makes the optimizer of a model.
    """

    name: str
    model: nn.Module
    loss: Callable[[nn.Module, Any], torch.Tensor]
    batches: Sequence[Any]
    optimizer: Callable[[nn.Module], Optimizer]

    def copied(self) -> nn.Module:
        """Return a copy of the model, in training mode.

        Raises:
            UserError: If it cannot be copied.
        """
        with failing(f"{self.name} cannot be copied, and advice leaves the model as it is"):
            return copy.deepcopy(self.model).train()

    def loss_of(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a model on a batch, a scalar that has a gradient.

        Raises:
            UserError: If it fails or is something else.
        """
        with failing(f"{self.name} fails on a batch in fp32 already"):
            found = self.loss(model, batch)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            shape = f" of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else ""
            raise UserError(
                f"the loss of {self.name} is a {type(found).__name__}{shape}; allowed: a tensor of "
                "one number"
            )
        if not found.requires_grad:
            raise UserError(
                f"the loss of {self.name} has no gradient; allowed: one that depends on a "
                "parameter that is trained"
            )
        return found


def find(
    name: str,
    options: Sequence[str] = (),
    *,
    batches: str | None = None,
    loss: str | None = None,
    learning_rate: float = 0.01,
) -> Subject:
    """Return what a config trains, or what functions of the user's make.

    Args:
        name: A config's name or path, or "FILE.py:FUNCTION".
        options: Overrides of the config.
        batches: For a function: another, that returns batches.
        loss: For a function: another, of model and batch.
        learning_rate: For a function: that of SGD.

    Raises:
        UserError: If it cannot be had, or if options are given that belong to the other kind.
    """
    module, colon, _ = name.partition(":")
    if not (colon and module.endswith(".py")):
        if batches or loss:
            raise UserError(
                f"--batches and --loss belong to a model of yours, but {name!r} is a config, which "
                "has its own; leave them out"
            )
        return of_config(files.load(name, options))
    if options:
        raise UserError(f"--options change a config, but {name!r} is a function; leave them out")
    if batches is None:
        raise UserError(
            f"{name!r} is a model without data; write --batches data.py:batches, a function that "
            "returns batches of (inputs, targets)"
        )
    return of_code(name, batches, loss, learning_rate)


def of_config(config: Config) -> Subject:
    """Return what a config trains, on the CPU.

    Raises:
        UserError: If the data, the model or the optimizer cannot be had.
    """
    device = torch.device("cpu")
    loaded = data.load(
        config.data,
        batch_size=config.batch_size,
        seed=config.seed,
        device=device,
        drop_last=config.drop_last,
    )
    torch.manual_seed(config.seed)
    model = models.build(config.model, classes=len(loaded.classes), image_shape=loaded.image_shape)
    batches = []
    for number, (images, labels) in enumerate(loaded.train.epoch(1)):
        batches.append(loaded.prepare(images, labels, device=device, train=True, number=number))
        if len(batches) == BATCHES:
            break

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        return functional.cross_entropy(
            model(images), labels, label_smoothing=config.label_smoothing
        )

    return Subject(
        config.name,
        model,
        loss,
        batches,
        lambda model: optim.build_optimizer(config.optimizer, model, fused=False),
    )


def of_code(model: str, batches: str, loss: str | None, learning_rate: float) -> Subject:
    """Return what functions of the user's make, trained by SGD with momentum.

    Args:
        model: "build:model" or "build.py:model", a function that returns the model.
        batches: The same for an iterable of batches: (inputs, targets), or what the loss takes.
        loss: The same for a function of model and batch that returns the loss; by default the
            cross-entropy of what the model returns for the inputs.
        learning_rate: Of SGD.

    Raises:
        UserError: If a function cannot be had, or returns something else.
    """
    make, make_batches = _imported(model, "advise MODEL"), _imported(batches, "--batches")
    with failing(f"{model} fails"):
        made = make()
    if not isinstance(made, torch.nn.Module):
        raise UserError(f"{model} returns {type(made).__name__}; allowed: a torch.nn.Module")
    if not any(param.requires_grad for param in made.parameters()):
        raise UserError(f"{model} returns a model without a parameter to train")
    with failing(f"{batches} fails"):
        first = list(itertools.islice(make_batches(), BATCHES))
    if not first:
        raise UserError(f"{batches} gives no batch; allowed: an iterable of (inputs, targets)")
    return Subject(
        model,
        made,
        _imported(loss, "--loss") if loss else _cross_entropy,
        first,
        lambda model: torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9),
    )


def _imported(path: str, field: str) -> Callable[..., Any]:
    """Return the function at "build:model", "sub/build.py:model" or "/elsewhere/build.py:model"."""
    module, colon, name = path.partition(":")
    if module.endswith(".py"):
        file = Path(module)
        if not file.is_file():
            raise UserError(f"{field} is {path!r}, but there is no file {module!r}")
        if file.is_absolute() or ".." in file.parts:  # beside what it may import itself
            sys.path.insert(0, str(file.parent.resolve()))
            file = Path(file.name)
        module = ".".join(file.with_suffix("").parts)
    return import_path.load(f"{module}{colon}{name}", field)


def _cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise UserError(
            f"a batch is a {type(batch).__name__}; allowed without --loss: (inputs, targets)"
        )
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets)
