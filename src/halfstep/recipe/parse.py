"""Parses a list of recipes on a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.recipe.table import recipe, written_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.recipe.recipe import Recipe


def parse_recipes(text: str, own: Recipe | None = None) -> tuple[str, ...]:
    """Parse `--recipes fp32,fp16,bf16`; each name may be a composition such as bf16+tf32.

    Args:
        text: The value of the flag.
        own: The recipe that the config defines by its fields, if any; its name is also accepted.

    Returns:
        The names of the recipes, in the given order.

    Raises:
        UserError: If a name is unknown, is that of a file, or appears twice.
    """
    given = [part.strip() for part in text.split(",") if part.strip()]
    if not given:
        raise UserError(
            f"--recipes is {text!r}; name one or more, such as --recipes fp32,fp16,bf16"
        )
    for part in given:
        if written_out(part) != part:
            name = recipe(part).name
            raise UserError(
                f"--recipes names the file {part}, and takes only names; make {part} the command's "
                f"CONFIG, and name its recipe {name!r}: --recipes fp32,{name}"
            )
    try:
        names = [
            part if own is not None and part == own.name else recipe(part).name for part in given
        ]
    except ValueError as error:
        also = f"; {own.name} is the config's own" if own is not None else ""
        raise UserError(f"--recipes: {error}{also}") from error
    refuse_repeated("--recipes", text, names)
    return tuple(names)


def refuse_repeated(option: str, text: str, values: Sequence[object]) -> None:
    """Refuse a list that names a value twice.

    Raises:
        UserError: The message names the option and the value.
    """
    for value in values:
        if values.count(value) > 1:
            raise UserError(f"{option} is {text!r}, which names {value} twice; name it once")
