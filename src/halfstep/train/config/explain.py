"""Configs for readers: every field with its documentation, and a JSON schema for editors."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from halfstep.train.config.schema import Config
from halfstep.train.config.text import dump

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTH = 100
_INDENT = "  "


def explained(config: Config) -> str:
    """Return the whole config, defaults included, as YAML that `load` accepts.

    The documentation of each field stands above it as a comment.
    """
    return "\n".join(_lines(config, "")) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a config file.

    A file with a `base` says only what differs, so nothing is required of it.
    """
    whole = Config.model_json_schema(mode="validation")
    whole["title"] = "A config of halfstep"
    whole["properties"]["base"] = {
        "description": "The config to start from: a shipped one's name, or a relative path.",
        "type": "string",
    }
    for section in (whole, *whole["$defs"].values()):
        section.pop("required", None)
        for field in section.get("properties", {}).values():
            if "oneOf" in field:  # a part of a section fits several kinds, and timm's name is any
                field["anyOf"] = field.pop("oneOf")
                field.pop("discriminator", None)
    return whole


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    plain = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        if name not in plain:  # an alias, which stands for another field
            continue
        comment = " ".join((field.description or "").split())
        yield from textwrap.wrap(
            comment, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + _INDENT)
        else:
            text = dump({name: plain[name]})
            # PyYAML puts a mapping of one plain value in braces.
            is_plain = not isinstance(plain[name], dict | list)
            yield from textwrap.indent(text[1:-2] if is_plain else text, indent).splitlines()
