"""Builds the page of all commands, from the definitions of the command line."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "reference/commands.md"


def pages() -> dict[str, str]:
    """Return the page by its path: a section for each command, with a table of its parameters."""
    import typer

    from halfstep.cli import app

    lines = ["# Commands", "", "The same as `halfstep COMMAND --help` prints."]
    for name, command in _commands(typer.main.get_command(app), "halfstep"):
        lines += ["", f"## {name}", "", _prose(command.help or "")]
        rows = [row for each in command.params if (row := _row(each))]
        if rows:
            lines += ["", "| argument or option | purpose |", "| --- | --- |", *rows]
    return {PAGE: "\n".join(lines) + "\n"}


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for each in getattr(command, "commands", {}).values():
        full = f"{name} {each.name}"
        if getattr(each, "commands", None):
            yield from _commands(each, full)
        else:
            yield full, each


def _row(parameter: Any) -> str:
    if parameter.name == "help" or getattr(parameter, "hidden", False):
        return ""
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else []
    default = getattr(parameter, "default", None)
    values = parameter.metavar or (_choices(default) if isinstance(default, Enum) else "")
    shown = " ".join([", ".join(names), values]).strip() or parameter.name.upper()
    said = _escaped(" ".join((getattr(parameter, "help", "") or "").split()))
    is_shown = getattr(parameter, "show_default", True) is not False
    if is_option and is_shown and default is not None and not isinstance(default, bool):
        said += f" Default: `{default.value if isinstance(default, Enum) else default}`."
    return f"| `{_in_a_cell(shown)}` | {_in_a_cell(said)} |"


def _choices(value: Enum) -> str:
    """Return all values of an enumeration, as `--help` prints them."""
    return "|".join(str(each.value) for each in type(value))


def _in_a_cell(text: str) -> str:
    return text.replace("|", r"\|")


def _prose(text: str) -> str:
    """Return the paragraphs of a help text, and its indented examples as blocks of code."""
    found = []
    for part in re.split(r"\n[ \t]*\n", text.strip("\n")):
        if part.startswith("    "):
            found.append(f"```bash\n{part.strip()}\n```")
        else:
            found.append(_escaped(" ".join(part.split())))
    return "\n\n".join(found).replace("\n```\n\n```bash\n", "\n")


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", r"\*").replace("[", r"\[")
