"""The subject of advice: a model with its loss, its batches and its optimizer."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import random
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from halfstep.advise import shapes
from halfstep.advise.random_numbers import RandomNumbers
from halfstep.errors import UserError, failing
from halfstep.train import data
from halfstep.train.build import loss as losses
from halfstep.train.build import models, optim, schedules
from halfstep.train.config import files, import_path
from halfstep.train.config.schedule import StepConfig
from halfstep.train.data.pipeline import batch_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from halfstep.advise.shapes import Images
    from halfstep.train.config import Config
    from halfstep.train.data import Data

BATCHES = 8
_ANY_CONFIG = {
    "name": "advise",
    "epochs": 1,
    "batch_size": 1,
    "data": {"name": "digits"},
    "model": {"name": "timm:resnet18"},
    "schedule": {"name": "constant"},
}
_ASSUMED = {"name": "sgd", "lr": 0.01}
_END = object()


@dataclass(frozen=True, slots=True)
class Subject:
    """The training to advise on. Nothing in it is modified: only copies run.

    Attributes:
        name: The name of the subject in printed text.
        model: The model in fp32, without any wrapper, on its device.
        loss: Returns the mean loss of a model on a batch, a scalar tensor.
        batches: Training batches; eight are used, repeatedly if there are fewer.
        optimizer: Returns a new optimizer for a model.
        epoch: Returns the batches of an epoch, given a seed and the number of the epoch, from 1;
            None if `batches` is the whole data.
        schedule: Returns the learning rate scheduler for an optimizer and a number of steps, or
            None if the rate is constant; the attribute is None if the rate is always constant.
        config: The name or path of the config, and its overrides; None for a subject from
            functions.
        batch_size: Samples of a predicted micro-step; 0 for as many as the first batch has.
        accumulate: Micro-steps per step; each has one batch.
        clip_norm: Maximum norm of a step's gradients; None for no clipping.
        trained_with: The settings of the optimizer, for a subject from functions; None for a
            config.
        assumed: The names of the settings in `trained_with` that the user did not give.
        loss_path: The path of the user's loss function; "" if `loss` is not the user's.
    """

    name: str
    model: nn.Module
    loss: Callable[[nn.Module, Any], torch.Tensor]
    batches: Sequence[Any]
    optimizer: Callable[[nn.Module], Optimizer]
    epoch: Callable[[int, int], Iterator[Any]] | None = None
    schedule: Callable[[Optimizer, int], LRScheduler | None] | None = None
    config: tuple[str, tuple[str, ...]] | None = None
    batch_size: int = 0
    accumulate: int = 1
    clip_norm: float | None = None
    trained_with: Mapping[str, Any] | None = None
    assumed: tuple[str, ...] = ()
    loss_path: str = ""

    def training(self, seed: int) -> Iterator[Any]:
        """Yield training batches without end; the same seed gives the same batches."""
        chance = RandomNumbers(seed)
        for number in itertools.count(1):
            with chance.drawn():
                batches = iter(self.epoch(seed, number) if self.epoch else self._shuffled())
            taken = 0
            while True:
                with chance.drawn():
                    batch = next(batches, _END)
                if batch is _END:
                    break
                taken += 1
                yield batch
            if not taken:
                raise UserError(f"{self.name} gives no batch in epoch {number} of its training")

    def _shuffled(self) -> Iterator[Any]:
        return iter(random.sample(self.batches, len(self.batches)))

    def copied(self) -> nn.Module:
        """Return a copy of the model, in training mode.

        Raises:
            UserError: If the model cannot be copied.
        """
        with failing(f"{self.name} cannot be copied, and advise trains only copies"):
            return copy.deepcopy(self.model).train()

    def loss_of(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a model on a batch, a scalar that has a gradient.

        Raises:
            UserError: If the loss function fails or returns anything else.
        """
        path = self.loss_path
        loss = f" with --loss {path}" if path else ""
        how = ", called with (model, batch), not (outputs, targets)" if path else ""
        with failing(f"{self.name}{loss} fails on a batch even in fp32{how}"):
            found = self.loss(model, batch)
        if not isinstance(found, torch.Tensor) or found.numel() != 1:
            shape = f" of shape {list(found.shape)}" if isinstance(found, torch.Tensor) else ""
            raise UserError(
                f"the loss of {self.name} is a {type(found).__name__}{shape}; allowed: a tensor of "
                "one number"
            )
        if not found.requires_grad:
            raise UserError(
                f"the loss of {self.name} has no gradient; allowed: a loss that depends "
                "on a trainable parameter"
            )
        return found


def find(
    name: str,
    options: Sequence[str] = (),
    *,
    batches: str | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    images: Images | None = None,
) -> Subject:
    """Build the subject from a config, from a library's model, or from functions of the user.

    Args:
        name: The name or path of a config, a library's model such as "timm:resnet50", or
            "FILE.py:FUNCTION" for a function that returns the model.
        options: Overrides of the config.
        batches: Only with a function: the path of a function that returns batches.
        loss: Only with a function: the path of a function of model and batch that returns the loss.
        optimizer: Only with a function: the name of an optimizer, as in a config; None for SGD.
        learning_rate: Only with a function: the learning rate of the optimizer; None for 0.01.
        seed: Only with a function: the seed of the random numbers that the functions draw.
        images: Images in place of a data set, of which only the cost can be predicted.

    Raises:
        UserError: If the subject cannot be built, or if an argument applies only to the other kind
            of `name`.
    """
    module, colon, _ = name.partition(":")
    if not colon and module.endswith(".py"):
        raise _without_function(name, "the model")
    if not (colon and module.endswith(".py")):
        flags = {
            "--batches": batches,
            "--loss": loss,
            "--optimizer": optimizer,
            "--lr": learning_rate,
        }
        if given := " and ".join(flag for flag, value in flags.items() if value is not None):
            raise UserError(
                f"{given} can be given only for a function that returns a model, but {name!r} is "
                f"a config; leave out {given}, or change the config with --options"
            )
        config = files.load(shapes.settings(name) if shapes.is_library(name) else name, options)
        found = of_images(config, images) if images else of_config(config)
        return replace(found, config=(name, tuple(options)))
    if options:
        raise UserError(f"--options change a config, but {name!r} is a function; leave them out")
    if batches is None and images is None:
        raise UserError(
            f"{name!r} is a model without data; write --batches data.py:batches, a function that "
            "returns batches of (inputs, targets)"
        )
    if batches is not None and images is not None:
        raise UserError("--batches and --shape both give the inputs; leave out one of them")
    inputs = _zeros(images) if images is not None else batches
    assert inputs is not None
    return of_code(name, inputs, loss, optimizer, learning_rate, seed=seed)


def of_config(config: Config, *, batches: int = BATCHES) -> Subject:
    """Build the subject that a config describes, on the CPU.

    Args:
        config: The config.
        batches: The number of batches to load now.

    Raises:
        UserError: If the data, the model, the loss or the optimizer cannot be built.
    """
    device = torch.device("cpu")

    def load(seed: int) -> Data:
        return data.load(
            config.data,
            batch_size=config.batch_size,
            seed=seed,
            device=device,
            drop_last=config.drop_last,
        )

    def epoch(seed: int, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        ready = loaded if seed == config.seed else load(seed)
        for at, (images, labels) in enumerate(ready.train.epoch(number)):
            yield ready.prepare(images, labels, device=device, train=True, epoch=number, number=at)

    loaded = load(config.seed)
    batch_size.refuse(config, loaded.train.images)
    return _of_config(
        config,
        len(loaded.classes),
        loaded.image_shape,
        lambda: list(itertools.islice(epoch(config.seed, 1), batches)),
        epoch,
    )


def of_images(config: Config, images: Images) -> Subject:
    """Build the subject that a config describes with images in place of its data set.

    Args:
        config: The config.
        images: The images; the subject has one batch of two, and the tracer resizes it.

    Raises:
        UserError: If the model, the loss or the optimizer cannot be built.
    """
    found = _of_config(config, images.classes, images.shape, lambda: _zeros(images), None)
    return replace(found, batch_size=config.batch_size)


def _zeros(images: Images) -> list[Any]:
    return [(torch.zeros(2, *images.shape), torch.zeros(2, dtype=torch.int64))]


def _of_config(
    config: Config,
    classes: int,
    image_shape: tuple[int, int, int],
    first: Callable[[], list[Any]],
    epoch: Callable[[int, int], Iterator[Any]] | None,
) -> Subject:
    minimised = losses.build(config, classes, torch.device("cpu"))
    scaling = config.lr_scaling
    lr_factor = scaling.factor(config.batch_size * config.accumulate) if scaling else 1.0
    with RandomNumbers(config.seed).drawn():
        model = models.build(config.model, classes=classes, image_shape=image_shape)
        batches = first()
    return Subject(
        config.name,
        model,
        lambda model, batch: minimised(model(batch[0]), batch[1]),
        batches,
        lambda model: optim.build_optimizer(
            config.optimizer,
            model,
            classes=classes,
            fused=False,
            lr_factor=lr_factor,
            seed=config.seed,
        ),
        epoch,
        lambda optimizer, steps: _shortened(config, optimizer, steps),
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
    )


def _shortened(config: Config, optimizer: Optimizer, steps: int) -> LRScheduler | None:
    """Return the scheduler of a config with all its epochs shortened to `steps` steps in total."""
    in_an_epoch = steps / config.epochs
    if isinstance(config.schedule, StepConfig):  # at least one step between two drops
        in_an_epoch = max(in_an_epoch, 1 / config.schedule.every_epochs)
    made = schedules.build(config.schedule, optimizer, steps=steps, steps_per_epoch=in_an_epoch)
    return made.per_step


def of_code(
    model: str,
    batches: str | list[Any],
    loss: str | None,
    optimizer: str | None = None,
    learning_rate: float | None = None,
    *,
    seed: int = 0,
) -> Subject:
    """Build the subject from functions of the user, with an optimizer named as in a config.

    Args:
        model: "model:build" or "model.py:build", the path of a function that returns the model.
        batches: The path of a function that returns an iterable of batches: (inputs, targets), or
            whatever `loss` accepts; or the batches themselves.
        loss: The path of a function of model and batch that returns the loss; by default the
            cross-entropy of the model's outputs for the inputs.
        optimizer: The name of the optimizer in a config; None for SGD with momentum.
        learning_rate: The learning rate of the optimizer; None for 0.01.
        seed: The seed of the random numbers that the functions draw.

    Raises:
        UserError: If a function cannot be imported, fails, or returns a value of another type.
    """
    given = {"name": optimizer, "lr": learning_rate}
    assumed = {name: _ASSUMED[name] for name, value in given.items() if value is None}
    settings: dict[str, Any] = given | assumed
    if settings["name"] == "sgd":
        settings["momentum"] = 0.9
    # Validating a whole config gives errors that name the field and its allowed values.
    chosen = files.load({**_ANY_CONFIG, "optimizer": settings}).optimizer
    make = _imported(model, "advise MODEL")
    make_batches: Callable[..., Any]
    make_batches = _imported(batches, "--batches") if isinstance(batches, str) else lambda: batches
    made = _built(make, model, seed)
    if not any(param.requires_grad for param in made.parameters()):
        raise UserError(f"{model} returns a model without a parameter to train")
    optim.build_optimizer(chosen, made, classes=0, fused=False)  # Fails early.
    with RandomNumbers(seed).drawn(), failing(f"{batches} fails"):
        first = list(itertools.islice(make_batches(), BATCHES))

    def epoch(seed: int, number: int) -> Iterator[Any]:
        del seed, number  # epochs differ by the random numbers drawn
        # Drawn before the call of the function, which may set the random seed.
        order = random.Random(random.random())  # noqa: S311  (only shuffles)
        with failing(f"{batches} fails"):
            found = make_batches()
            # A list has the same order in each call; unshuffled, all trainings would be identical.
            yield from order.sample(found, len(found)) if isinstance(found, list) else found

    if not first:
        raise UserError(
            f"{batches} gives no batch; allowed: an iterable of (inputs, targets), "
            f"preferably {BATCHES} or more"
        )
    return Subject(
        model,
        made,
        _loss(loss) if loss else _cross_entropy,
        first,
        lambda model: optim.build_optimizer(chosen, model, classes=0, fused=False),
        epoch,
        trained_with=settings,
        assumed=tuple(assumed),
        loss_path=loss or "",
    )


def model_of(path: str, field: str, *, seed: int = 0) -> torch.nn.Module:
    """Return the model that a function of the user builds.

    Args:
        path: "model:build" or "model.py:build".
        field: The name of the argument, for messages.
        seed: The seed of the random numbers that the function draws.

    Raises:
        UserError: If the function cannot be imported, fails, or returns a value of another type.
    """
    return _built(_imported(path, field), path, seed)


def _built(make: Callable[..., Any], path: str, seed: int) -> torch.nn.Module:
    """Return the model that the function at `path` makes."""
    with RandomNumbers(seed).drawn(), failing(f"{path} fails"):
        made = make()
    if not isinstance(made, torch.nn.Module):
        raise UserError(f"{path} returns {type(made).__name__}; allowed: a torch.nn.Module")
    return made


def _loss(path: str) -> Callable[..., Any]:
    """Return the user's loss function; it must accept a model and a batch."""
    function = _imported(path, "--loss")
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function in C
        return function
    try:
        signature.bind("model", "batch")
    except TypeError:
        names = ", ".join(signature.parameters)
        raise UserError(
            f"--loss is {path!r}, whose arguments are ({names}); allowed: a function that can be "
            "called with (model, batch) and returns the loss"
        ) from None
    return function


def _imported(path: str, field: str) -> Callable[..., Any]:
    """Return the function at "model:build", "sub/model.py:build" or "/elsewhere/model.py:build"."""
    module, colon, name = path.partition(":")
    if not colon:
        raise _without_function(path, field)
    if module.endswith(".py"):
        file = Path(module)
        if not file.is_file():
            raise UserError(f"{field} is {path!r}, but there is no file {module!r}")
        if file.is_absolute() or ".." in file.parts:  # it may import its neighbours
            sys.path.insert(0, str(file.parent.resolve()))
            file = Path(file.name)
        module = ".".join(file.with_suffix("").parts)
    return import_path.load(f"{module}{colon}{name}", field)


def _without_function(path: str, field: str) -> UserError:
    """Return the error for a path without a function; it lists the functions in the file."""
    file = Path(path)
    try:
        body = ast.parse(file.read_text()).body if file.suffix == ".py" else []
    except (OSError, SyntaxError, ValueError):
        body = []
    names = [each.name for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    allowed = [f"{path}:{name}" for name in names if not name.startswith("_")]
    said = ", ".join(allowed) or "FILE.py:FUNCTION, such as data.py:batches"
    return UserError(f"{field} is {path!r}, without a function; allowed: {said}")


_OTHER_LOSS = "for another loss write --loss data.py:loss, a function of model and batch"


def _cross_entropy(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        # In a trace, the type is FakeTensor, which the user does not know.
        given = "Tensor" if isinstance(batch, torch.Tensor) else type(batch).__name__
        raise UserError(f"a batch is a {given}; allowed without --loss: (inputs, targets)")
    inputs, targets = batch
    outputs = model(inputs)
    if targets.is_floating_point() and targets.shape != outputs.shape:
        raise UserError(
            f"targets are {targets.dtype} of shape {list(targets.shape)}, and outputs have the "
            f"shape {list(outputs.shape)}; allowed without --loss: class numbers (int64), or "
            f"probabilities of the outputs' shape; {_OTHER_LOSS}"
        )
    given = f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)}"
    with failing(f"cross_entropy fails on {given} ({_OTHER_LOSS})"):
        return functional.cross_entropy(outputs, targets)
