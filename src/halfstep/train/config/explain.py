"""Writes a config with the documentation of every field, and a JSON schema for editors.

A field that is not set is written as a comment that shows its possible values.
"""

from __future__ import annotations

import textwrap
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel

from halfstep.train.config.augment import AugmentConfig
from halfstep.train.config.schema import Config
from halfstep.yaml_text import dump

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic.fields import FieldInfo

_WIDTH = 100
_INDENT = "  "
_KINDS = {int: "INTEGER", float: "NUMBER", str: "TEXT", bool: "true | false"}


def explained(config: Config) -> str:
    """Return the whole config, defaults included, as YAML that `load` accepts.

    The documentation of each field is a comment above it. A field that is not set is a comment too,
    with its type, or with the defaults if it is a section.
    """
    return "\n".join(_lines(config, "")) + "\n"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a config file.

    No key is required, because a file with a `base` contains only the differences.
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
            # `oneOf` rejects a partial section, or timm's `name`, because several classes match.
            if "oneOf" in field:
                field["anyOf"] = field.pop("oneOf")
                field.pop("discriminator", None)
    return whole


def _lines(section: BaseModel, indent: str) -> Iterator[str]:
    plain = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        if name not in plain:  # an alias of another field, such as `fp16`
            continue
        yield from _documentation(field, indent)
        value = getattr(section, name)
        if isinstance(value, BaseModel) and _sets_nothing(value):
            yield from _commented(_possible(name, type(value)), indent)
        elif isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _lines(value, indent + _INDENT)
        elif value is None and field.default is None:
            in_force = section.settings() if isinstance(section, AugmentConfig) else None
            if hasattr(in_force, name):
                yield from _commented([_assigned(name, _plain(getattr(in_force, name)))], indent)
            else:
                yield from _commented(_possible(name, field.annotation), indent)
        else:
            yield from textwrap.indent(_assigned(name, plain[name]), indent).splitlines()


def _sets_nothing(section: BaseModel) -> bool:
    """Tell whether all fields are None, which is also their default."""
    return not (section.model_dump(exclude_none=True) or section.model_dump(exclude_defaults=True))


def _documentation(field: FieldInfo, indent: str) -> list[str]:
    comment = " ".join((field.description or "").split())
    start = f"{indent}# "
    return textwrap.wrap(comment, _WIDTH, initial_indent=start, subsequent_indent=start)


def _possible(name: str, kind: Any) -> Iterator[str]:
    """Yield the lines that could be written for a field that is not set."""
    bare = _without_none(kind)
    if not (isinstance(bare, type) and issubclass(bare, BaseModel)):
        yield f"{name}: {_placeholder(bare)}"
        return
    yield f"{name}:"
    for key, field in bare.model_fields.items():
        yield from _documentation(field, _INDENT)
        if field.is_required() or field.default is None:
            yield f"{_INDENT}{key}: {_placeholder(_without_none(field.annotation))}"
        else:
            yield _INDENT + _assigned(key, _plain(field.default))


def _without_none(kind: Any) -> Any:
    """Return X for an annotation "X | None", and any other annotation unchanged."""
    options = get_args(kind)
    return (
        next(option for option in options if option is not NoneType)
        if NoneType in options
        else kind
    )


def _placeholder(kind: Any) -> str:
    arguments = get_args(kind)
    if get_origin(kind) is Annotated:
        return _placeholder(arguments[0])
    if get_origin(kind) is Literal:
        return " | ".join(map(str, arguments))
    if get_origin(kind) is tuple:
        inner = ("..." if argument is ... else _placeholder(argument) for argument in arguments)
        return f"[{', '.join(inner)}]"
    return _KINDS[kind]


def _commented(lines: Iterable[str], indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in lines]


def _assigned(name: str, value: Any) -> str:
    text = dump({name: value})
    # ruamel.yaml writes a mapping of one plain value in braces, which are removed here.
    return text.rstrip("\n") if isinstance(value, dict | list) else text[1:-2]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
