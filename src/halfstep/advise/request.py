"""What a call of `halfstep advise` asks for, checked before torch is imported."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.advise import shapes
from halfstep.advise.predict.gpus import GIB, parse_gpus
from halfstep.errors import UserError
from halfstep.recipe.parse import parse_recipes
from halfstep.train.config.files import load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from halfstep.advise.predict.gpus import Gpu
    from halfstep.advise.shapes import Images


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of `halfstep advise`, as on the command line.

    Attributes:
        subject: A config, `FILE.py:FUNCTION`, or the name of a library's model.
        options: Overrides of the config.
        recipes: Names of recipes, separated by commas; None for the default.
        batches: The function that returns batches.
        loss: The function that returns the loss.
        optimizer: The name of the optimizer.
        lr: The learning rate.
        gpu: Names of GPUs, separated by commas.
        batch_size: Samples of a predicted step.
        max_memory: Memory that a step may use, in GiB.
        cost_only: Whether nothing is trained; always so for a library's model.
        shape: The shape of an image, in place of a data set.
        classes: The number of classes, in place of a data set.
        verify: Whether to verify the recipe in short training runs; None for the default.
        budget: Seconds for the whole call.
        out: The directory of the files.
        seed: The seed of all random numbers.
    """

    subject: str
    options: Sequence[str] = ()
    recipes: str | None = None
    batches: str | None = None
    loss: str | None = None
    optimizer: str | None = None
    lr: float | None = None
    gpu: str | None = None
    batch_size: int | None = None
    max_memory: float | None = None
    cost_only: bool = False
    shape: str | None = None
    classes: int | None = None
    verify: bool | None = None
    budget: float
    out: Path | None = None
    seed: int = 0

    @property
    def only_costs(self) -> bool:
        """Whether nothing is trained."""
        return self.cost_only or shapes.is_library(self.subject)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs to choose a recipe for."""
        return parse_gpus(self.gpu) if self.gpu is not None else ()

    @property
    def named(self) -> tuple[str, ...]:
        """The recipes that were named; empty for the default."""
        return tuple(parse_recipes(self.recipes)) if self.recipes else ()

    @property
    def images(self) -> Images | None:
        """The images in place of a data set."""
        return shapes.images(self.subject, self.shape, self.classes)

    @property
    def memory(self) -> float | None:
        """Bytes that a step may use."""
        return self.max_memory and self.max_memory * GIB

    def refuse(self) -> None:
        """Refuse a wrong config, wrong names, and flags that contradict each other.

        Raises:
            UserError: If there are any; the message is one line.
        """
        is_library = shapes.is_library(self.subject)
        _ = self.gpus
        if ".py" not in self.subject:
            load(shapes.settings(self.subject) if is_library else self.subject, self.options)
        if not self.gpus and (self.only_costs or self.batch_size or self.max_memory):
            raise UserError(
                "--cost-only, timm:MODEL, --batch-size and --max-memory need --gpu; write, for "
                "example, --gpu h100"
            )
        if self.only_costs and (self.verify or self.out):
            raise UserError("--cost-only trains nothing; leave out --verify and --out")
        if not self.only_costs and (self.shape or self.classes):
            raise UserError(
                "--shape and --classes need --cost-only: without data, nothing is trained"
            )
        _ = self.images, self.named

    @property
    def examination(self) -> str:
        """The command without --cost-only and --gpu, which examines the safety of recipes.

        "" if there are no data for it.
        """
        if self.images is not None:
            return ""
        given = {
            "--batches": self.batches,
            "--loss": self.loss,
            "--optimizer": self.optimizer,
            "--lr": self.lr,
            "--recipes": self.recipes,
            "--batch-size": self.batch_size,
            "--max-memory": self.max_memory,
        }
        flags = {flag: str(value) for flag, value in given.items() if value is not None}
        words = [
            *itertools.chain(*flags.items()),
            *(["--options", *self.options] if self.options else []),
        ]
        return shlex.join(["halfstep", "advise", self.subject, *words])
