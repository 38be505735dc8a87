"""The settings of any run: those of its loop, whatever it trains.

`Config` adds the data, the model and the optimizer that a file names; `objects.config` adds what is
recorded of the objects of a program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, field_validator, model_validator

from halfstep.errors import UserError
from halfstep.recipe import Recipe, recipe
from halfstep.recipe.table import written_out
from halfstep.train.config.loop import (
    AverageConfig,
    CheckpointsConfig,
    DistributedConfig,
    EarlyStoppingConfig,
    StoppingConfig,
)
from halfstep.train.config.section import Section

_FP16 = "fp16"


class RunConfig(Section):
    """The settings of a run that its loop reads."""

    name: str
    """Name of the config, under which its runs are stored; the file's name by default."""
    description: str = ""
    """One line that `halfstep configs` prints."""
    recipe: str | dict[str, Any] = "fp32"
    """Number formats of a training step: the name of a recipe, names joined by "+", a mapping of
    recipe fields, in which `base` names the recipe to start from, or the path of another config,
    whose recipe is used."""
    fp16: bool = Field(default=False, exclude=True)
    """Short for `recipe: fp16`, which replaces it in the saved config."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seed for the initial weights and the order of the training images."""
    device: str = "auto"
    """Training device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""
    threads: int | None = Field(None, ge=1, le=4096)
    """CPU threads per process, unless OMP_NUM_THREADS is set; null uses torch's default."""
    epochs: int = Field(ge=1)
    """Number of passes over the training images."""
    max_steps: int | None = Field(None, ge=1)
    """Maximum number of optimizer steps of the run; null sets no limit."""
    accumulate: int = Field(1, ge=1)
    """Number of micro-batches whose gradients are accumulated for one optimizer step."""
    clip_norm: float | None = Field(None, gt=0)
    """Maximum gradient norm for clipping; null does not clip."""
    log_every: int = Field(10, ge=1)
    """Number of optimizer steps between two lines of training metrics."""
    val_every: int = Field(1, ge=1)
    """Number of epochs between validations. The last epoch is always validated."""
    average: AverageConfig | None = None
    """Average of the weights that is validated and exported; null uses the weights themselves."""
    early_stopping: EarlyStoppingConfig | StoppingConfig | None = None
    """When to stop before the last epoch; null never stops early."""
    on_nonfinite: Literal["stop", "skip", "rollback"] = "stop"
    """What to do if the loss is non-finite: "stop" the run once the weights were updated with it,
    "skip" the step under any recipe, or "rollback" to the newest checkpoint and continue with the
    next batch. "skip" and "rollback" do the same if gradients are non-finite and there is no loss
    scale, and wait for the device at every step."""
    doctor: bool = True
    """Whether doctor watches the run. If the run fails, the diagnosis is written to diagnosis.txt
    and diagnosis.json, and `halfstep doctor RUN` prints it. Training results do not change."""
    graph: bool = False
    """Whether to replay each training step as one CUDA graph after the first steps, which saves the
    host's work between kernels. The optimizer must be sgd, adam or adamw. On a CPU, steps run
    eagerly. doctor does not watch such a run, because a replay runs no code that it could see."""
    auto_microbatch: bool = False
    """Whether to split a batch that does not fit into memory and continue the run. The update stays
    the same, unless the model computes statistics over the batch."""
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    """Which checkpoints of the run are kept."""
    distributed: DistributedConfig = DistributedConfig()
    """How several processes train the run together."""
    tracking: Annotated[
        tuple[
            Literal["tensorboard", "wandb", "mlflow", "swanlab", "trackio", "comet", "clearml"], ...
        ],
        Strict(strict=False),
    ] = ("tensorboard",)
    """Trackers that receive the metrics, in addition to metrics.jsonl: tensorboard, wandb, mlflow,
    swanlab, trackio, comet, clearml."""
    observers: Annotated[tuple[str, ...], Strict(strict=False)] = ()
    """Your own observers: import:package.module:Class, where Class is a subclass of
    halfstep.Observer. Their hooks are called during the run, and may record figures or end it."""
    probes: bool = False
    """Whether to probe the run after each epoch: the difference of one batch's gradients from fp32,
    the share of weights that the last step left unchanged, the formats in which operators really
    computed, and the contents of memory. Training results do not change."""

    @model_validator(mode="before")
    @classmethod
    def _fp16_is_a_recipe(cls, values: Any) -> Any:
        return expand(values) if isinstance(values, dict) else values

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
        if not re.fullmatch(r"auto|cpu|(cuda|xpu)(:\d{1,3})?|mps(:0)?", given):
            raise ValueError(
                f"{given!r} is not a device; allowed: auto, cpu, cuda, xpu, mps, or a number as in "
                "cuda:1"
            )
        return given

    @field_validator("observers")
    @classmethod
    def _are_import_paths(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for name in given:
            if not re.fullmatch(r"import:[\w.]+:\w+", name):
                raise ValueError(
                    f"{name!r} is not an observer; allowed: import:package.module:Class, such as "
                    "import:my_observers:GradientNorms"
                )
        return given

    @field_validator("recipe")
    @classmethod
    def _is_a_recipe(cls, given: str | dict[str, Any]) -> str | dict[str, Any]:
        given = written_out(given)
        try:
            recipe(given)
        except TypeError as error:  # a field has a type that cannot be compared with its range
            raise ValueError(f"{given!r} does not make a recipe: {error}") from error
        return given

    @model_validator(mode="after")
    def _graph_takes_the_whole_step(self) -> RunConfig:
        clashes = {
            f"on_nonfinite is {self.on_nonfinite!r}, which looks at the loss before the step; "
            "write on_nonfinite: stop": self.on_nonfinite != "stop",
            "auto_microbatch is true, which repeats backward passes in pieces; write "
            "auto_microbatch: false": self.auto_microbatch,
            "probes is true, which looks at gradients before the step; write probes: false": (
                self.probes
            ),
        }
        for clash, is_so in clashes.items():
            if self.graph and is_so:
                raise ValueError(
                    "graph is true, so that forward, backward and step are one replay, but "
                    f"{clash}, or graph: false"
                )
        return self

    def build_recipe(self) -> Recipe:
        """Return the recipe that the `recipe` field describes."""
        return recipe(self.recipe)

    def out_of_memory(self, why: str) -> str:
        """Return a message that says what to try, for a batch that does not fit in memory."""
        narrow = "" if self.build_recipe().autocast else ", or the recipe fp16 or bf16"
        smaller = f"smaller batches with accumulate={self.accumulate * 2}"
        return f"there is not enough memory for a batch ({why}); try {smaller}{narrow}"

    def new_length_changes(self, shorter: int) -> str | None:
        """Return why learning rates would change if the number of epochs did, or None.

        Args:
            shorter: The smaller one of the two numbers of epochs.
        """
        del shorter
        return None


def expand(values: Mapping[str, Any], below: Any = None) -> dict[str, Any]:
    """Return the values of one source with `fp16: true` replaced by `recipe: fp16`.

    This is done for each source before the sources are merged, so that the last source that sets
    either key takes effect. `below` is the recipe of the earlier sources.

    Raises:
        UserError: If the source also names another recipe.
    """
    expanded = dict(values)
    fp16 = expanded.get("fp16")
    if not isinstance(fp16, bool):  # absent, or a type that the schema refuses
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
