"""What format each part of a training step uses, as pure data, and the one table of named recipes.

A `Recipe` says nothing about how: each field that is set is carried out by one technique. A field
that is not set is `None`, so that recipes compose without hiding each other's fields. The module
does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from halfstep.errors import closest
from halfstep.formats import FORMATS

ParamFormat = Literal["fp32", "fp16", "bf16"]
HalfFormat = Literal["fp16", "bf16"]
Matmul = Literal["ieee", "tf32"]
Update = Literal["stochastic", "kahan"]


@dataclass(frozen=True, slots=True)
class LossScale:
    """How the loss is scaled so that small gradients survive a narrow format.

    Attributes:
        dynamic: Whether the scale grows and backs off; a static one stays at `init`.
        init: The scale of the first step.
        growth_factor: What the scale is multiplied by after `growth_interval` finite steps.
        growth_interval: Number of finite steps in a row before the scale grows.
        backoff_factor: What the scale is multiplied by when a gradient is not finite.
        floor: The scale never falls below this; being stuck here is a collapse.
        ceiling: The scale never grows beyond this.
        collapse_after: So many skipped steps in a row are a collapse, which is an error.

    Raises:
        ValueError: If a number lies outside its range.
    """

    dynamic: bool = True
    init: float = 65536.0
    growth_factor: float = 2.0
    growth_interval: int = 2000
    backoff_factor: float = 0.5
    floor: float = 2.0**-10
    ceiling: float = 2.0**24
    collapse_after: int = 30

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name != "dynamic"):
            given = getattr(self, name)
            is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
            if not is_number:
                raise ValueError(f"loss_scale.{name} is {given!r}; allowed: a number, such as 1024")
        for name in ("growth_interval", "collapse_after"):
            given = getattr(self, name)
            if given != int(given):
                raise ValueError(f"loss_scale.{name} is {given!r}; allowed: a whole number")
            object.__setattr__(self, name, int(given))  # YAML reads 1e3 as a float
        fp32 = FORMATS["fp32"]
        checks = {
            "dynamic": (isinstance(self.dynamic, bool), "True or False"),
            "floor": (
                self.floor >= fp32.tiny,
                f"{fp32.tiny:.3g} or more, so that fp32 holds 1/floor",
            ),
            "ceiling": (self.ceiling <= fp32.max, f"{fp32.max:.3g} or less, which fp32 holds"),
            "init": (
                self.floor <= self.init <= self.ceiling,
                "floor <= init <= ceiling",
            ),
            "growth_factor": (1 < self.growth_factor < math.inf, "more than 1"),
            "growth_interval": (self.growth_interval >= 1, "1 or more"),
            "backoff_factor": (0 < self.backoff_factor < 1, "between 0 and 1"),
            "collapse_after": (self.collapse_after >= 1, "1 or more"),
        }
        for name, (holds, allowed) in checks.items():
            if not holds:
                given = getattr(self, name)
                msg = f"loss_scale.{name} is {given!r}; allowed: {allowed}"
                if name == "init":
                    msg += f" (floor={self.floor!r}, ceiling={self.ceiling!r})"
                raise ValueError(msg)

    @classmethod
    def parse(cls, value: object) -> LossScale:
        """Read a loss scale as users write it.

        Args:
            value: "dynamic", a number for a static scale ("128" too), a mapping of this class's
                fields, or a `LossScale`.

        Raises:
            ValueError: If `value` is none of these; the message says what is allowed.
        """
        if isinstance(value, cls):
            return value
        if value == "dynamic":
            return cls()
        if isinstance(value, Mapping):
            _refuse_unknown("loss_scale field", value, [field.name for field in fields(cls)])
            return cls(**value)
        try:
            number = float(value)  # type: ignore[arg-type]  # anything else is refused below
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(value, bool) or not 0 < number < math.inf:
            raise ValueError(
                f"loss_scale is {value!r}; allowed: 'dynamic', a positive number for a static "
                "scale, or a mapping such as {init: 1024, growth_interval: 100}"
            )
        return cls(
            dynamic=False,
            init=number,
            floor=min(LossScale().floor, number),
            ceiling=max(LossScale().ceiling, number),
        )

    def __str__(self) -> str:
        return "dynamic" if self.dynamic else f"static {self.init:g}"


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
        master_weights: Whether the optimizer owns fp32 copies of half parameters.
        gradients: Format in which `.grad` of half parameters is kept; theirs when not set. From
            the second backward of a window on, gradients accumulate in fp32 whatever it says.
        outputs: "fp32" casts what a model in a half format returns.
        loss_scale: How the loss is scaled.
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
    master_weights: bool | None = None
    gradients: ParamFormat | None = None
    outputs: Literal["fp32"] | None = None
    loss_scale: LossScale | None = None
    update: Update | None = None

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
        return Recipe(name="+".join(sorted(parts, key=_rank)), **(mine | theirs))

    def __str__(self) -> str:
        said = ", ".join(f"{name} {value}" for name, value in _fields(self).items())
        return f"{self.name} ({said})" if said else self.name


_ALLOWED: dict[str, tuple[Any, ...]] = {
    "params": get_args(ParamFormat),
    "norms": ("fp32",),
    "autocast": get_args(HalfFormat),
    "matmul": get_args(Matmul),
    "master_weights": (True, False),
    "gradients": get_args(ParamFormat),
    "outputs": ("fp32",),
    "update": get_args(Update),
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


_CONTRADICTIONS = (_one_half_format, _rounded_update, _needs_half_params, _gradients_fit)


RECIPES: dict[str, tuple[Recipe, str]] = {
    row.name: (row, purpose)
    for row, purpose in (
        (
            Recipe("fp32", params="fp32", matmul="ieee"),
            "IEEE single precision throughout: the reference",
        ),
        (
            Recipe("tf32", params="fp32", matmul="tf32"),
            "fp32, with matrix products and convolutions on TF32 tensor cores",
        ),
        (
            Recipe("fp16", params="fp32", autocast="fp16", loss_scale=LossScale()),
            "autocast to fp16 with a dynamic loss scale, fp32 parameters",
        ),
        (
            Recipe("bf16", params="fp32", autocast="bf16"),
            "autocast to bf16, fp32 parameters; no loss scale needed",
        ),
        (
            Recipe("half", params="fp16"),
            "model.half() and nothing else, the first scheme that people try",
        ),
        (
            Recipe("half-bn32", params="fp16", norms="fp32"),
            "model.half() with norm layers kept in fp32",
        ),
        (Recipe("o0", params="fp32"), "Apex O0: fp32 training"),
        (
            Recipe("o1", params="fp32", autocast="fp16", loss_scale=LossScale()),
            "Apex O1: casts around functions, dynamic loss scale",
        ),
        (
            Recipe(
                "o2",
                params="fp16",
                norms="fp32",
                master_weights=True,
                gradients="fp32",
                outputs="fp32",
                loss_scale=LossScale(),
            ),
            "Apex O2: fp16 model, fp32 norms and master weights, dynamic loss scale",
        ),
        (
            Recipe("o3", params="fp16", outputs="fp32"),
            "Apex O3: fp16 throughout, fp32 outputs, no loss scale",
        ),
        (
            Recipe("bf16-true", params="bf16"),
            "bf16 parameters and optimizer state, rounded to nearest: small updates stall",
        ),
        (
            Recipe("bf16-sr", params="bf16", update="stochastic"),
            "bf16 parameters with stochastically rounded updates, no fp32 copy",
        ),
        (
            Recipe("bf16-kahan", params="bf16", update="kahan"),
            "bf16 parameters with Kahan-compensated updates, no fp32 copy",
        ),
    )
}


def recipes() -> list[str]:
    """Return the names of the recipes that `recipe` knows, in the order of the table."""
    return list(RECIPES)


def recipe(spec: str | Recipe | Mapping[str, Any]) -> Recipe:
    """Find or build a recipe.

    Args:
        spec: A name ("fp16"), names joined by "+" ("bf16+tf32"; the order does not matter), a
            mapping of fields (`base` in it names a recipe to change), or a `Recipe`.

    Raises:
        ValueError: If a name or field is unknown (the closest is named), or if the composition
            contradicts itself.
        TypeError: If `spec` is none of these.
    """
    if isinstance(spec, Recipe):
        return spec
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if not isinstance(spec, str):
        raise TypeError(
            f"recipe is {spec!r}; allowed: a name ({', '.join(RECIPES)}), names joined by '+', a "
            "mapping of fields, or a Recipe"
        )
    found = []
    for part in spec.split("+"):
        name = part.strip().lower()
        if name not in RECIPES:
            raise ValueError(
                f"no recipe is named {part!r}; allowed: {', '.join(RECIPES)}, or several joined by "
                f"'+'{closest(name, RECIPES)}"
            )
        found.append(RECIPES[name][0])
    combined = found[0]
    for other in found[1:]:
        combined = combined + other
    return combined


def _from_mapping(spec: Mapping[str, Any]) -> Recipe:
    known = [field.name for field in fields(Recipe)]
    _refuse_unknown("recipe field", spec, [*known, "base"])
    changes = dict(spec)
    base = changes.pop("base", None)
    if base is None:
        return Recipe(**changes)
    start = recipe(base)
    changes.setdefault("name", f"{start.name}*")
    return replace(start, **changes)


def _rank(name: str) -> tuple[int, str]:
    return (list(RECIPES).index(name) if name in RECIPES else len(RECIPES), name)


def _refuse_unknown(what: str, given: Mapping[str, Any], known: list[str]) -> None:
    for name in given:
        if name not in known:
            raise ValueError(
                f"no {what} is named {name!r}; allowed: {', '.join(known)}{closest(name, known)}"
            )
