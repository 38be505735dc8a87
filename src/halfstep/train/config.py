"""What a config may say: one class a section, the text under each field is its documentation.

Values are checked strictly (a string is not a number) and unknown keys are refused;
`config_errors` turns what pydantic reports into one line. Nothing here imports torch.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator, model_validator

from halfstep.recipe import Recipe, recipe

_Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """What all parts of a config share: immutable, strict, no unknown keys."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class DataConfig(Section):
    """The images and labels to learn."""

    name: Literal["digits"] = "digits"
    """The data set: "digits" is scikit-learn's 1,797 real 8x8 scans of handwritten digits."""
    resolution: int = Field(16, ge=8, le=1024)
    """Height and width in pixels that images are resized to."""
    workers: int = Field(0, ge=0, le=256)
    """Processes that load batches; 0 loads them in the training process."""


class ModelConfig(Section):
    """The classifier; its number of classes and of input channels come from the data."""

    name: str
    """A timm or torchvision classifier: "timm:resnet18", "torchvision:resnet18", or "resnet18",
    which is looked up in timm first."""
    args: dict[str, Any] = {}
    """Further arguments of the model's constructor, passed on as they are."""


class SgdConfig(Section):
    """Stochastic gradient descent, `torch.optim.SGD`."""

    name: Literal["sgd"]
    """Which optimizer."""
    lr: float = Field(0.1, gt=0)
    """Learning rate; a schedule's highest one."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum factor."""
    nesterov: bool = False
    """Whether momentum is Nesterov's."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty on all parameters."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SgdConfig:
        if self.nesterov and not self.momentum:
            raise ValueError(
                "nesterov is true but momentum is 0; write momentum: 0.9 or nesterov: false"
            )
        return self


class AdamWConfig(Section):
    """Adam with decoupled weight decay, `torch.optim.AdamW`."""

    name: Literal["adamw"]
    """Which optimizer."""
    lr: float = Field(1e-3, gt=0)
    """Learning rate; a schedule's highest one."""
    betas: Annotated[tuple[_Beta, _Beta], Strict(strict=False)] = (0.9, 0.999)
    """Decay rates of the running mean of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(1e-2, ge=0)
    """Decoupled weight decay on all parameters."""


class ConstantConfig(Section):
    """The same learning rate throughout, after the warm-up."""

    name: Literal["constant"]
    """Which schedule."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of all optimizer steps over which the learning rate rises linearly to its value."""


class CosineConfig(Section):
    """A linear warm-up, then half a cosine down to zero."""

    name: Literal["cosine"]
    """Which schedule."""
    warmup: float = Field(0.0, ge=0, lt=1)
    """Share of all optimizer steps over which the learning rate rises linearly to its value."""


class OneCycleConfig(Section):
    """Smith's one-cycle policy: a cosine up to the learning rate, a cosine down to almost zero."""

    name: Literal["one-cycle"]
    """Which schedule."""
    warmup: float = Field(0.3, ge=0, lt=1)
    """Share of all optimizer steps over which the learning rate rises."""


class Config(Section):
    """Everything that decides how a run turns out."""

    name: str
    """What runs are filed under; the file's name when not given."""
    description: str = ""
    """One line for `halfstep configs`."""
    recipe: str | dict[str, Any] = "fp32"
    """The number formats of a training step: a recipe's name, names joined by "+", or a mapping of
    a recipe's fields, with `base` for the one to start from."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the initial weights and of the order of the training images."""
    device: str = "auto"
    """Where to train: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""
    epochs: int = Field(ge=1)
    """Passes over the training images."""
    batch_size: int = Field(ge=1)
    """Images in one micro-batch."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches whose gradients make one optimizer step."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the gradient; longer ones are shortened to it. null leaves them alone."""
    log_every: int = Field(10, ge=1)
    """Optimizer steps between two lines of metrics."""
    data: DataConfig = DataConfig()
    """The images and labels to learn."""
    model: ModelConfig
    """The classifier."""
    optimizer: Annotated[SgdConfig | AdamWConfig, Field(discriminator="name")]
    """What turns gradients into updates."""
    schedule: Annotated[ConstantConfig | CosineConfig | OneCycleConfig, Field(discriminator="name")]
    """How the learning rate changes, stepped once for each optimizer step."""

    @field_validator("name")
    @classmethod
    def _is_a_relative_path(cls, given: str) -> str:
        if not re.fullmatch(r"[\w+-][\w.+-]*(/[\w+-][\w.+-]*)*", given):
            raise ValueError(
                f"{given!r} cannot name a folder; allowed: letters, digits, . _ + - and / between"
            )
        return given

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, given: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", given):
            raise ValueError(
                f"{given!r} is no device; allowed: auto, cpu, cuda, or a number as in cuda:1"
            )
        return given

    @field_validator("recipe")
    @classmethod
    def _is_a_recipe(cls, given: str | dict[str, Any]) -> str | dict[str, Any]:
        try:
            recipe(given)
        except TypeError as error:  # a field of a kind that cannot even be compared with its range
            raise ValueError(f"{given!r} does not make a recipe: {error}") from error
        return given

    def build_recipe(self) -> Recipe:
        """Return the recipe that the `recipe` field describes."""
        return recipe(self.recipe)
