"""The whole config: what a run needs that no section of its own has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator, model_validator

from halfstep.errors import UserError
from halfstep.recipe import Recipe, recipe
from halfstep.train.config.data import DataConfig, DigitsConfig
from halfstep.train.config.loop import (
    AverageConfig,
    CheckpointsConfig,
    DistributedConfig,
    EarlyStoppingConfig,
    LrScalingConfig,
)
from halfstep.train.config.loss import LossConfig
from halfstep.train.config.model import ModelConfig
from halfstep.train.config.optimizer import OptimizerConfig
from halfstep.train.config.schedule import ScheduleConfig
from halfstep.train.config.section import Section

_FP16 = "fp16"


class Config(Section):
    """Everything that decides how a run turns out."""

    name: str
    """What runs are filed under; the file's name when not given."""
    description: str = ""
    """One line for `halfstep configs`."""
    recipe: str | dict[str, Any] = "fp32"
    """The number formats of a training step: a recipe's name, names joined by "+", or a mapping of
    a recipe's fields, with `base` for the one to start from."""
    fp16: bool = Field(default=False, exclude=True)
    """Short for `recipe: fp16`, which it is written as from then on."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the initial weights and of the order of the training images."""
    device: str = "auto"
    """Where to train: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""
    threads: int | None = Field(None, ge=1, le=4096)
    """CPU threads of a process, where OMP_NUM_THREADS does not say; null leaves them to torch."""
    epochs: int = Field(ge=1)
    """Passes over the training images."""
    max_steps: int | None = Field(None, ge=1)
    """Most optimizer steps of the run, however many epochs they make; null sets no limit."""
    batch_size: int = Field(ge=1)
    """Images in one micro-batch of one process."""
    drop_last: bool = True
    """Whether training leaves out the last batch of an epoch where it is smaller than the others: a
    step of a few images would count as much as one of many. The next epoch has another order."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches whose gradients make one optimizer step."""
    clip_norm: float | None = Field(None, gt=0)
    """Largest norm of the gradient; longer ones are shortened to it. null leaves them alone."""
    log_every: int = Field(10, ge=1)
    """Optimizer steps between two lines of metrics."""
    val_every: int = Field(1, ge=1)
    """Epochs from one validation to the next; the last epoch is always validated."""
    loss: LossConfig = LossConfig()
    """What training minimises."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of a label's probability that is spread over all classes, in training only."""
    lr_scaling: LrScalingConfig | None = None
    """How optimizer.lr follows the number of images in a step (batch_size times accumulate times
    processes); null takes it as it is."""
    average: AverageConfig | None = None
    """The average of the weights that is validated and exported; null uses the weights."""
    early_stopping: EarlyStoppingConfig | None = None
    """When to stop before the last epoch; null never does."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """What to do about a loss that is not finite: "stop" when an update was made with it; "skip"
    its step, whatever the recipe; or "rollback" to the newest checkpoint and go on with the batch
    after. The last two wait for the device at every step."""
    doctor: bool = True
    """Whether the run is watched, so that it can say why where it went wrong: diagnosis.json and
    diagnosis.txt in its directory, and `halfstep doctor RUN`. What is learned stays the same."""
    auto_microbatch: bool = False
    """Whether a batch for which memory does not suffice is split, and the run goes on; the update
    is the same, unless the model computes statistics over the batch."""
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    """Which states of the run are kept to go on from."""
    distributed: DistributedConfig = DistributedConfig()
    """How several processes train the run together."""
    tracking: Annotated[
        tuple[
            Literal["tensorboard", "wandb", "mlflow", "swanlab", "trackio", "comet", "clearml"], ...
        ],
        Strict(strict=False),
    ] = ("tensorboard",)
    """Where figures go besides metrics.jsonl: any of tensorboard, wandb, mlflow, swanlab, trackio,
    comet and clearml."""
    observers: Annotated[tuple[str, ...], Strict(strict=False)] = ()
    """Who else watches the run: import:package.module:Class, a subclass of halfstep.Observer of
    your own. It is called at fixed points, and may record figures or end the run."""
    probes: bool = False
    """Whether each epoch ends with a look into the run: gradients beside fp32's on one batch, the
    share of the weights that the last step left unchanged, the formats that the arithmetic really
    ran in, and what memory holds. The run itself stays the same."""
    data: DataConfig = DigitsConfig()
    """The images and labels to learn."""
    model: ModelConfig
    """The classifier."""
    optimizer: OptimizerConfig
    """What turns gradients into updates."""
    schedule: ScheduleConfig
    """How the learning rate changes, stepped once for each optimizer step."""

    @model_validator(mode="before")
    @classmethod
    def _fp16_is_a_recipe(cls, values: Any) -> Any:
        return expand(values) if isinstance(values, dict) else values

    @model_validator(mode="before")
    @classmethod
    def _reads_a_former_name(cls, values: Any) -> Any:
        """Up to 0.2.0, `checkpoint_activations` was under `distributed`, for FSDP2 alone."""
        match values:
            case {"distributed": {"checkpoint_activations": bool(asked), **rest}, "model": dict(m)}:
                model = {"checkpoint_activations": asked, **m}
                return {**values, "distributed": rest, "model": model}
        return values

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

    @field_validator("observers")
    @classmethod
    def _are_import_paths(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for each in given:
            if not re.fullmatch(r"import:[\w.]+:\w+", each):
                raise ValueError(
                    f"{each!r} is no observer; allowed: import:package.module:Class, such as "
                    "import:my_observers:GradientNorms"
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


def expand(values: Mapping[str, Any], below: Any = None) -> dict[str, Any]:
    """Return the values of one source with `fp16: true` written as `recipe: fp16`.

    In each source by itself, before they are merged, so that the last source that sets either name
    decides. `below` is the recipe before.

    Raises:
        UserError: If it names another recipe as well.
    """
    expanded = dict(values)
    fp16 = expanded.get("fp16")
    if not isinstance(fp16, bool):  # absent, or for the schema to refuse
        return expanded
    del expanded["fp16"]
    given = expanded.get("recipe")
    if not fp16:
        if given == _FP16:
            raise UserError(f"fp16 is false but recipe is {given!r}; leave one of them out")
        if given is None and below == _FP16:
            expanded["recipe"] = "fp32"
        return expanded
    if isinstance(given, Mapping):
        given = {"base": _FP16, **given}
    if (given["base"] if isinstance(given, Mapping) else given or _FP16) != _FP16:
        raise UserError(
            f"fp16 is true but recipe is {expanded['recipe']!r}; leave one of them out, or write "
            f"recipe={_FP16}"
        )
    expanded["recipe"] = given or _FP16
    return expanded
