"""The table of named recipes, and `recipe`, which finds a recipe in the table or builds one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from halfstep.errors import UserError, closest, reason
from halfstep.loss_scale import LossScale
from halfstep.recipe.recipe import NAMES, Recipe

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
            Recipe(
                "fp16-acc16",
                params="fp32",
                autocast="fp16",
                accumulator="fp16",
                loss_scale=LossScale(),
            ),
            "fp16 on hardware that also accumulates products in fp16",
        ),
        (
            Recipe("bf16", params="fp32", autocast="bf16"),
            "autocast to bf16, fp32 parameters; no loss scale needed",
        ),
        (
            Recipe("half", params="fp16"),
            "model.half() and nothing else, which people often try first",
        ),
        (
            Recipe("half-bn32", params="fp16", norms="fp32"),
            "model.half() with norm layers kept in fp32",
        ),
        (Recipe("o0", params="fp32"), "Apex O0: fp32 training"),
        (
            Recipe("o1", params="fp32", autocast="fp16", loss_scale=LossScale()),
            "Apex O1: casts the inputs of functions, dynamic loss scale",
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
            "bf16 parameters and optimizer state, rounded to nearest: small updates are lost",
        ),
        (
            Recipe("bf16-sr", params="bf16", update="stochastic"),
            "bf16 parameters with stochastically rounded updates, no fp32 copy",
        ),
        (
            Recipe("bf16-kahan", params="bf16", update="kahan"),
            "bf16 parameters with Kahan-compensated updates, no fp32 copy",
        ),
        (
            Recipe("fp8", params="fp32", autocast="bf16", float8="dynamic"),
            "bf16 with linear and convolution layers in FP8; each tensor is scaled by its maximum",
        ),
        (
            Recipe("fp8-delayed", params="fp32", autocast="bf16", float8="delayed"),
            "fp8, but each tensor is scaled by its maximum in the last 16 steps",
        ),
        (
            Recipe("mxfp8", params="fp32", autocast="bf16", mx="fp8"),
            "bf16 with linear and convolution layers in MXFP8: blocks of 32 e4m3 elements",
        ),
        (
            Recipe("mxfp4", params="fp32", autocast="bf16", mx="fp4"),
            "bf16 with linear and convolution layers in MXFP4: blocks of 32 four-bit elements",
        ),
        (
            Recipe("nvfp4", params="fp32", autocast="bf16", nvfp4="published"),
            "bf16 with layers in NVFP4: blocks of 16 four-bit elements, as published for training",
        ),
        *(
            (
                Recipe(f"act{bits}", activations=bits),
                f"activations saved in {bits} bits; combine with another recipe: fp16+act{bits}",
            )
            for bits in (2, 3, 4, 8)
        ),
    )
}
NAMES += RECIPES


def recipes() -> list[str]:
    """Return the names of all recipes, in the order in which `halfstep recipes` lists them."""
    return list(RECIPES)


def recipe(spec: str | Path | Recipe | Mapping[str, Any]) -> Recipe:
    """Find or build a recipe.

    Args:
        spec: A name ("fp16"), names joined by "+" in any order ("bf16+tf32"), a mapping of
            fields, a `Recipe`, or the path of a config ("advice/t4.yaml"), whose recipe is used.
            In a mapping, the key `base` names a recipe to start from.

    Returns:
        The recipe.

    Raises:
        ValueError: If a name or field is unknown, if fields contradict each other, or if a config
            cannot be read or sets no recipe. The message names the closest known name.
        TypeError: If `spec` has another type.
    """
    return _find(written_out(spec))


def written_out(spec: Any) -> Any:
    """Return the name or mapping with which a config sets `recipe`, if `spec` is its path.

    Args:
        spec: The path of a config (see `is_file`); anything else is returned unchanged. Of the
            config, only its own entry `recipe` counts, without its `base`.

    Raises:
        UserError: If the file cannot be read or sets no recipe.
    """
    if not is_file(spec):
        return spec
    from halfstep.yaml_text import parse

    try:
        text = Path(spec).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read a recipe from {str(spec)!r}: {reason(error)}; allowed: a config that "
            "sets recipe, such as halfstep advise --out writes, or a name that halfstep recipes "
            "lists"
        ) from error
    values = parse(text, str(spec))
    found = values.get("recipe") if isinstance(values, Mapping) else None
    if not isinstance(found, str | Mapping):
        raise UserError(
            f"{spec} itself sets no recipe (a base or fp16 does not count); add a line such as "
            "recipe: fp16, or name the recipe"
        )
    return found


def is_file(spec: Any) -> bool:
    """Return whether `spec` is the path of a config: a `Path`, or text that ends in ".yaml"."""
    is_path = isinstance(spec, str) and spec.lower().endswith((".yaml", ".yml"))
    return is_path or isinstance(spec, Path)


def _find(spec: Any) -> Recipe:
    if isinstance(spec, Recipe):
        return spec
    if isinstance(spec, Mapping):
        return _from_mapping(spec)
    if not isinstance(spec, str):
        raise TypeError(
            f"recipe is {spec!r}; allowed: a name ({', '.join(RECIPES)}), names joined by '+', a "
            "mapping of fields, the path of a .yaml file, or a Recipe"
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
    changes = dict(spec)
    base = changes.pop("base", None)
    if base is None:
        return Recipe(**changes)
    start = _find(base)
    if changes:
        changes.setdefault("name", f"{start.name}*")
    return replace(start, **changes)
