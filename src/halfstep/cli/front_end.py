"""The command line as a front end: how messages tell its users what to write."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

_OPTIONS = {"overrides": "options"}
"""Arguments in Python whose option has another name."""


class CommandLine:
    """Calls of the commands; see `halfstep.caller.FrontEnd`."""

    traceback = "--debug shows where"

    def name(self, argument: str) -> str:
        """Return the option, such as `--top-k`."""
        return f"--{_OPTIONS.get(argument, argument).replace('_', '-')}"

    def setting(self, arguments: Mapping[str, Any]) -> str:
        """Return options with their values, such as `--resume auto`; True is an option alone."""
        return " ".join(
            self.name(name) if value is True else f"{self.name(name)} {_value(value)}"
            for name, value in arguments.items()
        )

    def fields(self, values: Mapping[str, Any]) -> str:
        """Return the flag `--options` with assignments, such as `--options epochs=3`."""
        pairs = (f"{name}={shlex.quote(_text(value))}" for name, value in values.items())
        return " ".join([self.name("overrides"), *pairs])


def _value(value: Any) -> str:
    """Return the value of an option; a mapping as in `--columns image=filename,label=species`."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(item)}" for name, item in value.items())
    return _text(value)


def _text(value: Any) -> str:
    """Return a value as YAML."""
    if value is ...:
        return "..."
    return value if isinstance(value, str) else json.dumps(value)
