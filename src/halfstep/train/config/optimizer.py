"""The config sections of optimizers: one class for each, and one class for all of timm's.

`name` selects the class. timm's optimizers share a class, because only timm knows their names; an
unknown name is refused when the optimizer is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Strict, Tag, model_validator

from halfstep.errors import closest
from halfstep.train.config.section import Section

_Beta = Annotated[float, Field(ge=0, lt=1)]
_LOW_BIT_ADAM = ("adam8bit", "adam4bit", "adamfp8")
_LOW_BIT_ADAMW = ("adamw8bit", "adamw4bit", "adamwfp8")
_OWN = ("sgd", "adam", "adamw", *_LOW_BIT_ADAM, *_LOW_BIT_ADAMW)
# Tags in angle brackets are not keys of a config, so errors leave them out of a field's path.
_ANY_OTHER = "<timm>"
_FEW_BITS = "<torchao-adam>"
_FEW_BITS_DECOUPLED = "<torchao-adamw>"


class _Grouped(Section):
    """Settings that every optimizer has."""

    name: str
    """Name of the optimizer."""
    lr: float = Field(gt=0)
    """Learning rate; the peak of the schedule."""
    decay_norms_and_biases: bool = False
    """Whether weight decay also applies to norms, biases and parameters that the model excludes,
    such as position embeddings."""
    layer_decay: float | None = Field(None, gt=0, le=1)
    """Factor of the learning rate from each layer to the previous one, so that the first layers of
    a pretrained model change least; null uses the same rate for all layers."""
    head_lr: float | None = Field(None, gt=0)
    """Learning rate of the classifier's last layer, which is often initialized randomly in a
    pretrained model; null uses `lr`."""


class SgdConfig(_Grouped):
    """Stochastic gradient descent, `torch.optim.SGD`."""

    name: Literal["sgd"]
    """Name of the optimizer."""
    lr: float = Field(0.1, gt=0)
    """Learning rate; the peak of the schedule."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum factor."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty."""
    state: Literal["bf16"] | None = None
    """Format of the momentum buffer: bf16 with stochastic rounding takes half the memory of fp32;
    null uses the format of the parameters."""

    @model_validator(mode="after")
    def _has_what_needs_momentum(self) -> SgdConfig:
        if self.nesterov and not self.momentum:
            raise ValueError(
                "nesterov is true but momentum is 0; write momentum: 0.9 or nesterov: false"
            )
        if self.state and not self.momentum:
            raise ValueError(
                "state is 'bf16' but momentum is 0, so that there is no state; write "
                "momentum: 0.9, or leave state out"
            )
        return self


class _Adam(_Grouped):
    """Settings that all variants of Adam share."""

    lr: float = Field(1e-3, gt=0)
    """Learning rate; the peak of the schedule."""
    betas: Annotated[tuple[_Beta, _Beta], Strict(strict=False)] = (0.9, 0.999)
    """Decay rates of the running mean of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to the denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """L2 penalty."""


class AdamConfig(_Adam):
    """Adam with an L2 penalty, `torch.optim.Adam`."""

    name: Literal["adam"]
    """Name of the optimizer."""
    state: Literal["bf16"] | None = None
    """Format of both moments: bf16 with stochastic rounding takes half the memory of fp32; null
    uses the format of the parameters."""


class AdamWConfig(AdamConfig):
    """Adam with decoupled weight decay, `torch.optim.AdamW`."""

    name: Literal["adamw"]  # type: ignore[assignment]  # another
    """Name of the optimizer."""
    weight_decay: float = Field(1e-2, ge=0)
    """Decoupled weight decay."""


class LowBitAdamConfig(_Adam):
    """torchao's Adam with an L2 penalty, whose moments have 8 or 4 bits per element."""

    name: Literal["adam8bit", "adam4bit", "adamfp8"]
    """Name of the optimizer, which also determines the format of its moments."""


class LowBitAdamWConfig(LowBitAdamConfig):
    """torchao's Adam with decoupled weight decay, whose moments have 8 or 4 bits per element."""

    name: Literal["adamw8bit", "adamw4bit", "adamwfp8"]  # type: ignore[assignment]  # others
    """Name of the optimizer, which also determines the format of its moments."""
    weight_decay: float = Field(1e-2, ge=0)
    """Decoupled weight decay."""


class TimmOptimizerConfig(_Grouped):
    """Any optimizer of timm's factory: "lamb", "lars", "lion", "nadamw", "lookahead_radam"."""

    name: str
    """Name of the optimizer in timm; `timm.optim.list_optimizers()` lists all names."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay; whether it is decoupled depends on the optimizer."""
    args: dict[str, Any] = Field({})
    """More arguments for the optimizer's constructor, such as {betas: [0.9, 0.98]}."""

    @model_validator(mode="before")
    @classmethod
    def _has_a_learning_rate(cls, values: Any) -> Any:
        """Explain a missing `lr`, which only timm's optimizers require, if `name` is a misspelling.

        A misspelling of an optimizer that has a default `lr`, such as "adm", is taken for timm's.
        """
        if isinstance(values, Mapping) and "lr" not in values:
            name = values.get("name")
            meant = closest(name, _OWN) if isinstance(name, str) else ""
            if meant:
                raise ValueError(
                    f"lr is missing, which timm's optimizers need, and {name!r} is taken for one "
                    f"of them; write lr: 1e-3, or another name{meant}"
                )
        return values

    @model_validator(mode="after")
    def _says_a_thing_once(self) -> TimmOptimizerConfig:
        twice = sorted({"lr", "weight_decay", "opt", "params"} & self.args.keys())
        if twice:
            raise ValueError(
                f"args holds {twice[0]!r}, which is not passed on that way; "
                "write it beside args: lr, weight_decay, name"
            )
        return self


def _kind(given: Any) -> str | None:
    name = given.get("name") if isinstance(given, Mapping) else getattr(given, "name", None)
    if name is None:
        return None
    if name in _LOW_BIT_ADAM:
        return _FEW_BITS
    if name in _LOW_BIT_ADAMW:
        return _FEW_BITS_DECOUPLED
    return name if name in _OWN else _ANY_OTHER


OptimizerConfig = Annotated[
    Annotated[SgdConfig, Tag("sgd")]
    | Annotated[AdamConfig, Tag("adam")]
    | Annotated[AdamWConfig, Tag("adamw")]
    | Annotated[LowBitAdamConfig, Tag(_FEW_BITS)]
    | Annotated[LowBitAdamWConfig, Tag(_FEW_BITS_DECOUPLED)]
    | Annotated[TimmOptimizerConfig, Tag(_ANY_OTHER)],
    Discriminator(_kind),
]
