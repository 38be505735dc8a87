"""Translates an opt_level and its overrides to a recipe, as the source of an argument."""

from __future__ import annotations

import ast
import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from halfstep.migrate.analysis.levels import LEVELS, possible_levels
from halfstep.migrate.program.names import argument
from halfstep.migrate.program.render import call_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.migrate.program.source import Source

NO_MIXED_PRECISION = '"o0"'
FROM_APEX = '''\
def recipe_from_apex(opt_level, keep_batchnorm_fp32=None, loss_scale=None):
    """Return the recipe of an Apex opt_level and its overrides, as they come from argparse."""
    fields = {"base": opt_level}
    if keep_batchnorm_fp32 is not None and opt_level in ("O2", "O3"):
        fields["norms"] = "fp32" if str(keep_batchnorm_fp32) == "True" else None
    if loss_scale is not None:
        fields["loss_scale"] = loss_scale
    return fields
'''
"""Added to a program whose opt_level or overrides are known at run time only."""
SCALES = '''\
def loss_scales_like_apex(engine, losses):
    """Return the loss scales of an engine in the format of amp.state_dict()."""
    scales = engine.loss_scales
    values = [float(scales[i].scale) if i in scales else engine.loss_scale for i in range(losses)]
    return {f"loss_scaler{i}": {"loss_scale": value} for i, value in enumerate(values)}
'''
"""Added to a program that reads loss scales from `amp.state_dict()`."""

_UNKNOWN = object()
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Pow: math.pow,
    ast.Mult: operator.mul,
}
_IGNORED = ("verbosity", "num_losses", "models", "optimizers", "opt_level", "enabled")
_ORDER = (
    "models",
    "optimizers",
    "enabled",
    "opt_level",
    "cast_model_type",
    "patch_torch_functions",
    "keep_batchnorm_fp32",
    "master_weights",
    "loss_scale",
    "cast_model_outputs",
    "num_losses",
    "verbosity",
    "min_loss_scale",
    "max_loss_scale",
)


@dataclass
class RecipeArgument:
    """The translation of the precision settings of a call of `amp.initialize`.

    Attributes:
        text: The source of the recipe.
        level: The opt_level if it is a literal, else None.
        level_text: The source of the opt_level.
        levels: The levels that the opt_level may have.
        enabled: The source of `enabled`, or None if it is a literal or not given.
        needs_function: Whether `text` calls `recipe_from_apex`.
        losses: The source of `num_losses`.
        settings: The translated overrides whose values are known, by field of the recipe.
        loss_scale_text: The source of a loss scale that is known at run time only, or None.
        left_out: Settings that could not be translated, each as `name=source`.
    """

    text: str = ""
    level: str | None = None
    level_text: str = '"O1"'
    levels: frozenset[str] = LEVELS
    enabled: str | None = None
    needs_function: bool = False
    losses: str = "1"
    settings: dict[str, Any] = field(default_factory=dict)
    loss_scale_text: str | None = None
    left_out: list[str] = field(default_factory=list)


def recipe_argument(source: Source, call: ast.Call) -> RecipeArgument:
    """Translate the arguments of `amp.initialize`."""
    found = RecipeArgument()
    nodes = {name: argument(call, name, place) for place, name in enumerate(_ORDER)}
    given = {name: source.code(node) for name, node in nodes.items() if node is not None}
    found.level_text = given.get("opt_level", found.level_text)
    level = _value(found.level_text)
    found.level = level if isinstance(level, str) else None
    found.levels = possible_levels(source, nodes["opt_level"], call)
    if isinstance(nodes["opt_level"], ast.IfExp | ast.BoolOp):
        found.level_text = f"({found.level_text})"
    if isinstance(nodes["enabled"], ast.IfExp | ast.BoolOp):
        given["enabled"] = f"({given['enabled']})"
    found.losses = given.get("num_losses", "1")
    _enabled(found, given.get("enabled", "True"))
    overrides = {
        name: text for name, text in given.items() if name not in _IGNORED and text != "None"
    }
    at_run_time = [
        name
        for name in ("keep_batchnorm_fp32", "loss_scale")
        if name in overrides and (found.level is None or _value(overrides[name]) is _UNKNOWN)
    ]
    if at_run_time:
        _at_run_time(found, overrides)
    else:
        _written_out(found, overrides)
    if found.enabled is not None:
        found.text = f"{found.text} if {found.enabled} else {NO_MIXED_PRECISION}"
    return found


def _enabled(found: RecipeArgument, text: str) -> None:
    value = _value(text)
    if value is _UNKNOWN:
        found.enabled = text
    elif not value:
        found.level, found.level_text, found.levels = "O0", '"O0"', frozenset({"O0"})


def _at_run_time(found: RecipeArgument, overrides: dict[str, str]) -> None:
    found.needs_function = True
    names = [name for name in ("keep_batchnorm_fp32", "loss_scale") if name in overrides]
    scale = overrides.get("loss_scale", '"dynamic"')
    if _value(scale) is _UNKNOWN:
        found.loss_scale_text = scale
    elif _value(scale) != "dynamic":
        found.settings = _loss_scale(found.level, _value(scale), scale) or {}
    passed = [found.level_text, *(f"{name}={overrides.pop(name)}" for name in names)]
    fields = _fields(found, overrides)
    found.text = call_text("recipe_from_apex", passed)
    if fields:
        found.text += f" | {_source(fields)}"


def _written_out(found: RecipeArgument, overrides: dict[str, str]) -> None:
    fields = _fields(found, overrides)
    found.settings = fields
    base = f'"{found.level.lower()}"' if found.level else found.level_text
    if not fields:
        found.text = base
        return
    entries = ", ".join(f'"{key}": {_source(value)}' for key, value in fields.items())
    found.text = f'{{"base": {base}, {entries}}}'


def _fields(found: RecipeArgument, overrides: dict[str, str]) -> dict[str, Any]:
    """Translate overrides to fields of a recipe; add those without a field to `left_out`."""
    fields: dict[str, Any] = {}
    for name, text in overrides.items():
        translate = _TRANSLATIONS.get(name)
        value = _value(text)
        translated = None if translate is None else translate(found.level, value, text)
        if translated is None:
            found.left_out.append(f"{name}={text}")
        else:
            for key, entry in translated.items():
                both = isinstance(entry, dict) and isinstance(fields.get(key), dict)
                fields[key] = fields[key] | entry if both else entry
    return fields


def _source(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, dict):
        inner = ", ".join(f'"{key}": {_source(entry)}' for key, entry in value.items())
        return f"{{{inner}}}"
    return repr(value)


def _value(text: str) -> Any:
    try:
        return _folded(ast.parse(text, mode="eval").body)
    except (ValueError, SyntaxError, TypeError, OverflowError):
        return _UNKNOWN


def _folded(node: ast.expr) -> Any:
    """Return the value of a literal, or of a power or product of numbers such as `2.0**16`."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](float(_folded(node.left)), float(_folded(node.right)))
    return ast.literal_eval(node)


def _batchnorm(level: str | None, value: Any, text: str) -> dict[str, Any] | None:
    del text
    keep = {"True": True, "False": False, True: True, False: False}.get(value)
    if keep is None or level not in {"O2", "O3"}:
        return None
    return {} if keep == (level == "O2") else {"norms": "fp32" if keep else None}


def _loss_scale(level: str | None, value: Any, text: str) -> dict[str, Any] | None:
    del text
    if value == "dynamic":
        return {} if level in {"O1", "O2"} else {"loss_scale": "dynamic"}
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if number == 1.0:
        return {} if level in {"O0", "O3"} else {"loss_scale": None}
    return {"loss_scale": number}


def _master_weights(level: str | None, value: Any, text: str) -> dict[str, Any] | None:
    del text
    if level not in {"O2", "O3"} or not isinstance(value, bool):
        return None
    return {} if value == (level == "O2") else {"master_weights": value}


def _model_type(level: str | None, value: Any, text: str) -> dict[str, Any] | None:
    del value
    if level in {"O2", "O3"} and text.endswith((".float16", ".half")):
        return {}
    if level in {"O2", "O3"} and text.endswith(".bfloat16"):
        return {"params": "bf16"}
    return {} if level in {"O0", "O1"} and text.endswith((".float32", ".float", "False")) else None


def _outputs(level: str | None, value: Any, text: str) -> dict[str, Any] | None:
    del value
    if level not in {"O2", "O3"}:
        return None
    if text.endswith((".float32", ".float")):
        return {}
    return {"outputs": None} if text.endswith((".float16", ".half", ".bfloat16")) else None


def _patching(level: str | None, value: Any, text: str) -> dict[str, Any] | None:
    del text
    return {} if value == (level == "O1") else None


def _limit(name: str) -> Any:
    def translate(level: str | None, value: Any, text: str) -> dict[str, Any] | None:
        del text
        if level not in {"O1", "O2"} or not isinstance(value, int | float):
            return None
        start = {"init": float(value)} if name == "ceiling" and value < 65536 else {}
        return {"loss_scale": {name: float(value)} | start}

    return translate


_TRANSLATIONS = {
    "keep_batchnorm_fp32": _batchnorm,
    "loss_scale": _loss_scale,
    "master_weights": _master_weights,
    "cast_model_type": _model_type,
    "cast_model_outputs": _outputs,
    "patch_torch_functions": _patching,
    "min_loss_scale": _limit("floor"),
    "max_loss_scale": _limit("ceiling"),
}
