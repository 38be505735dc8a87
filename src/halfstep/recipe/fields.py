"""What format each part of a training step uses, as pure data.

A `Recipe` says nothing about how: each field that is set is carried out by one technique. A field
that is not set is `None`, so that recipes compose without hiding each other's fields.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from halfstep.errors import closest
from halfstep.recipe.loss_scale import LossScale

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from halfstep.kernels.hardware import Resolution

ParamFormat = Literal["fp32", "fp16", "bf16"]
HalfFormat = Literal["fp16", "bf16"]
Matmul = Literal["ieee", "tf32"]
Float8 = Literal["dynamic", "delayed"]
Update = Literal["stochastic", "kahan"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The number formats of one training step. A field that is not set changes nothing.

    Attributes:
        name: What tables call it.
        params: Format of the model's parameters and buffers; inputs are cast to a half one.
        norms: "fp32" keeps norm layers' parameters, statistics and arithmetic in fp32 while the
            rest of the model is in a half format.
        autocast: Format that `torch.autocast` computes matrix products and convolutions in.
        matmul: How fp32 matrix products and convolutions compute: exact ("ieee") or "tf32".
        float8: Linear and convolution layers multiply in FP8: fp8-e4m3 forward, fp8-e5m2 gradients,
            each tensor scaled by its own largest value ("dynamic") or by those of steps before
            ("delayed").
        accumulation: "fp16" sums fp16 products in fp16, not in fp32.
        master_weights: Whether the optimizer owns fp32 copies of half parameters.
        gradients: Format in which `.grad` of half parameters is kept; theirs when not set. From
            the second backward of a window on, gradients accumulate in fp32 whatever it says.
        outputs: "fp32" casts what a model in a half format returns.
        loss_scale: How the loss is scaled.
        reduce: Format in which gradients are summed over processes; their own when not set. Without
            effect in one process.
        update: How the weight update of bf16 parameters is rounded: "stochastic" or with a "kahan"
            compensation; to nearest when not set.

    Raises:
        ValueError: If a field has a value that does not exist, or if fields contradict each other;
            the message names the nearest valid recipe.
    """

    name: str = "custom"
    params: ParamFormat | None = None
    norms: Literal["fp32"] | None = None
    autocast: HalfFormat | None = None
    matmul: Matmul | None = None
    float8: Float8 | None = None
    accumulation: Literal["fp16"] | None = None
    master_weights: bool | None = None
    gradients: ParamFormat | None = None
    outputs: Literal["fp32"] | None = None
    loss_scale: LossScale | None = None
    update: Update | None = None
    reduce: ParamFormat | None = None

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            given = getattr(self, name)
            if given is not None and given not in allowed:
                options = ", ".join(repr(option) for option in allowed)
                raise ValueError(
                    f"recipe field {name} is {given!r}; allowed: {options}{closest(given, allowed)}"
                )
        if self.loss_scale is not None:
            object.__setattr__(self, "loss_scale", LossScale.parse(self.loss_scale))
        for contradiction in _CONTRADICTIONS:
            reason = contradiction(self)
            if reason:
                raise ValueError(f"recipe {self.name!r} contradicts itself: {reason}")

    @property
    def half_params(self) -> HalfFormat | None:
        """The format of the parameters when it is a half one, else None."""
        return None if self.params == "fp32" else self.params

    @property
    def product_format(self) -> str:
        """The format that matrix products and convolutions of the forward pass compute in."""
        if self.float8:
            return "fp8-e4m3"
        if self.matmul == "tf32" and not (self.autocast or self.half_params):
            return "tf32"
        return self.autocast or self.half_params or "fp32"

    @property
    def overflows_early(self) -> bool:
        """Whether anything is kept or computed in fp16, whose largest value is 65504."""
        return "fp16" in (self.autocast, self.params, self.gradients, self.reduce)

    def settings(self) -> dict[str, Any]:
        """Return the fields that are set, without the name, as plain data for JSON and YAML."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "name" and value is not None
        }

    def __add__(self, other: Recipe) -> Recipe:
        """Compose two recipes; a field that both set to different values is refused by name."""
        mine, theirs = _fields(self), _fields(other)
        for name in mine.keys() & theirs.keys():
            if mine[name] != theirs[name]:
                raise ValueError(
                    f"recipes {self.name!r} and {other.name!r} disagree on {name}: "
                    f"{mine[name]!s} and {theirs[name]!s}; leave one of them out"
                )
        parts = dict.fromkeys([*self.name.split("+"), *other.name.split("+")])
        from halfstep.recipe.table import rank  # which is built of recipes

        return Recipe(name="+".join(sorted(parts, key=rank)), **(mine | theirs))

    def resolve(self, device: str | torch.device) -> Resolution:
        """Say what a device will really do: native, rehearsed, or refused with the reason.

        ```python
        print(recipe("fp8").resolve("cuda"))
        ```

        Raises:
            ValueError: If there is no such device.
        """
        from halfstep.kernels.hardware import resolve

        return resolve(self, device)

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in _fields(self).items())
        return f"{self.name} ({said})" if said else self.name


_ALLOWED: dict[str, tuple[Any, ...]] = {
    "params": get_args(ParamFormat),
    "norms": ("fp32",),
    "autocast": get_args(HalfFormat),
    "matmul": get_args(Matmul),
    "float8": get_args(Float8),
    "accumulation": ("fp16",),
    "master_weights": (True, False),
    "gradients": get_args(ParamFormat),
    "outputs": ("fp32",),
    "update": get_args(Update),
    "reduce": get_args(ParamFormat),
}


def _fields(recipe_: Recipe) -> dict[str, Any]:
    names = [field.name for field in fields(recipe_) if field.name != "name"]
    return {name: getattr(recipe_, name) for name in names if getattr(recipe_, name) is not None}


def _needs_half_params(given: Recipe) -> str | None:
    for name in ("norms", "master_weights", "gradients", "outputs"):
        value = getattr(given, name)
        if value and given.half_params is None and not (name == "gradients" and value == "fp32"):
            said = repr(given.params) if given.params else "not set"
            return (
                f"{name}={value!r} needs parameters in a half format, but params is {said}; "
                f"write params='fp16' or leave {name} out"
            )
    return None


def _one_half_format(given: Recipe) -> str | None:
    if given.autocast and given.half_params:
        return (
            f"autocast={given.autocast!r} casts fp32 parameters, but params={given.params!r} are "
            f"half already; write params='fp32' or leave autocast out"
        )
    return None


def _gradients_fit(given: Recipe) -> str | None:
    if given.gradients not in (None, "fp32", given.params):
        return (
            f"gradients={given.gradients!r} is neither fp32 nor the parameters' {given.params!r}; "
            f"write gradients='fp32' or leave it out"
        )
    return None


def _rounded_update(given: Recipe) -> str | None:
    if given.update and given.params != "bf16":
        said = repr(given.params) if given.params else "not set"
        return (
            f"update={given.update!r} rounds into bf16 parameters, but params is {said}; "
            "write params='bf16', or master_weights=True for fp16"
        )
    if given.update and given.master_weights:
        return (
            f"update={given.update!r} replaces fp32 master weights, but master_weights is True; "
            "leave one of them out"
        )
    return None


def _accumulates_products(given: Recipe) -> str | None:
    if given.accumulation and "fp16" not in (given.autocast, given.params):
        return (
            "accumulation='fp16' sums fp16 products, but nothing computes in fp16; write "
            "autocast='fp16' or params='fp16'"
        )
    return None


def _one_product_format(given: Recipe) -> str | None:
    if given.accumulation and given.float8:
        return (
            f"float8={given.float8!r} accumulates in fp32, but accumulation is 'fp16'; "
            "leave one of them out"
        )
    return None


_CONTRADICTIONS: tuple[Callable[[Recipe], str | None], ...] = (
    _one_half_format,
    _rounded_update,
    _needs_half_params,
    _gradients_fit,
    _accumulates_products,
    _one_product_format,
)
