"""`fp16: true`, which half of all training scripts take, is `recipe: fp16` here.

The alias is replaced in each file and on the command line on its own, before they are laid over
each other, so that whoever speaks last decides, by either name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from halfstep.errors import UserError

_RECIPE = "fp16"
_WITHOUT = "fp32"


def expand(values: Mapping[str, Any], below: Any = None) -> dict[str, Any]:
    """Return the values of one source with the alias as a recipe; `below` is the recipe before.

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
        if given == _RECIPE:
            raise UserError(f"fp16 is false but recipe is {given!r}; leave one of them out")
        if given is None and below == _RECIPE:
            expanded["recipe"] = _WITHOUT
        return expanded
    if isinstance(given, Mapping):
        given = {"base": _RECIPE, **given}
    if (given["base"] if isinstance(given, Mapping) else given or _RECIPE) != _RECIPE:
        raise UserError(
            f"fp16 is true but recipe is {expanded['recipe']!r}; leave one of them out, or write "
            f"recipe={_RECIPE}"
        )
    expanded["recipe"] = given or _RECIPE
    return expanded
