"""Converts pydantic's errors about a config to one line that tells the user what to change.

The line names the source of the value (a file, or an argument of the caller), the field, the value
and the allowed values; for an unknown key it names the closest valid one.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError

from halfstep import caller
from halfstep.errors import closest


class Source(NamedTuple):
    """Values of a config that come from one place.

    Attributes:
        label: The place in messages, such as "digits.yaml".
        values: The values.
        is_config: Whether the place is a config, and not an argument of the caller.
    """

    label: str
    values: Mapping[str, Any]
    is_config: bool = True


_OF_RECIPES = {"name", "description", "recipe"}
"""Keys of a file that has only a recipe; `files` adds name and description to every file."""


def one_line(
    error: ValidationError,
    config: type[BaseModel],
    given: Mapping[str, Any],
    sources: Sequence[Source],
) -> str:
    """Describe the first error in one line, with the number of further errors.

    `given` has the merged values of `sources`; later sources override earlier ones.
    """
    first, *others = error.errors(include_url=False)
    path = _path(first["loc"], given)
    dotted = ".".join(path)
    configs = [source for source in sources if source.is_config]
    holding = [source.label for source in sources if _holds(source.values, path)]
    where = (holding or [source.label for source in configs] or ["config"])[-1]
    section = ".".join(path[:-1])
    if first["type"] == "extra_forbidden":
        message = _unknown_key(dotted, section, first["loc"], config)
    elif first["type"] == "missing":
        message = (
            f"{dotted} is missing; write it in the config or as {caller.fields({dotted: ...})}"
        )
        if any(source.values.keys() == _OF_RECIPES for source in configs):
            message += ". The file has only a recipe: write it into a config, or pass it to Engine"
    elif first["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        message = _unknown_kind(first, dotted)
    elif first["type"] == "value_error":
        reason = str(first["ctx"]["error"])
        message = reason if where == caller.name(dotted) or not dotted else f"{dotted}: {reason}"
    else:
        is_section = first["type"] in {"model_type", "model_attributes_type", "dict_type"}
        allowed = "a mapping" if is_section else first["msg"].removeprefix("Input should be ")
        message = f"{dotted} is {first['input']!r}; allowed: {allowed}"
    more = f" (and {len(others)} more)" if others else ""
    return " ".join(f"{where}: {message}{more}".split())


def keys(config: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted names of all keys of a config, in the order of their definition."""
    dotted: list[str] = []
    for name, field in config.model_fields.items():
        dotted.append(prefix + name)
        for member in _members(field.annotation):
            dotted.extend(keys(member, f"{prefix}{name}."))
    return list(dict.fromkeys(dotted))


def _unknown_key(
    dotted: str, section: str, loc: tuple[int | str, ...], config: type[BaseModel]
) -> str:
    name = dotted.rpartition(".")[2]
    siblings = _names(_sections(loc[:-1], config))
    near = difflib.get_close_matches(name, siblings, n=1)
    candidates = [".".join([*filter(None, [section]), near[0]])] if near else []
    elsewhere = [key for key in keys(config) if key.rpartition(".")[2] == name and key != dotted]
    candidates += sorted(elsewhere, key=lambda key: key.count("."))
    hint = f"; did you mean {candidates[0]!r}?" if candidates else ""
    having = _kinds_that_have(name, loc, config)
    others = f" for this {section}.name, but for {', '.join(having)}" if having else ""
    return f"no key is named {dotted!r}{others}; allowed here: {', '.join(siblings)}{hint}"


def _unknown_kind(error: Any, dotted: str) -> str:
    context = error["ctx"]
    if "tag" not in context:
        if isinstance(error["input"], Mapping):
            return f"{dotted}.name is missing; write {caller.fields({f'{dotted}.name': ...})}"
        return f"{dotted} is {error['input']!r}; allowed: a mapping with the key 'name'"
    expected = [tag.strip(" '") for tag in context["expected_tags"].split(",")]
    return (
        f"{dotted}.name is {context['tag']!r}; allowed: {', '.join(expected)}"
        f"{closest(context['tag'], expected)}"
    )


def _path(loc: tuple[int | str, ...], given: Any) -> list[str]:
    """Return pydantic's location without the tags of unions, which are not keys of the config."""
    path: list[str] = []
    for index, part in enumerate(loc):
        is_tag = isinstance(given, Mapping) and part not in given and part == given.get("name")
        if is_tag or _stands_for_many(part):
            continue
        if not isinstance(given, Mapping | list):  # `part` is the name of a type, not a key
            break
        path.append(str(part))
        if isinstance(given, Mapping):
            given = given.get(part)
        elif isinstance(given, list) and isinstance(part, int) and part < len(given):
            given = given[part]
        elif index + 1 < len(loc):
            break
    return path


def _holds(values: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(values, Mapping):
            return True
        if part not in values:
            return False
        values = values[part]
    return bool(path)


def _kinds_that_have(name: str, loc: tuple[int | str, ...], config: type[BaseModel]) -> list[str]:
    """Return the tags, such as "sgd", of the alternatives for a section that have key `name`."""
    if len(loc) < 3:
        return []
    kinds = _sections(loc[:-2], config)
    if not any(loc[-2] in _tags(kind) or _stands_for_many(loc[-2]) for kind in kinds):
        return []
    return [tag for kind in kinds if name in kind.model_fields for tag in _tags(kind)]


def _names(sections: Sequence[type[BaseModel]]) -> list[str]:
    return list(dict.fromkeys(name for section in sections for name in section.model_fields))


def _sections(loc: tuple[int | str, ...], config: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the possible classes of the section at a location of pydantic."""
    sections = [config]
    for part in loc:
        tagged = [
            section
            for section in sections
            if part in _tags(section) or (_stands_for_many(part) and not _tags(section))
        ]
        sections = tagged or [
            member
            for section in sections
            if part in section.model_fields
            for member in _members(section.model_fields[str(part)].annotation)
        ]
    return sections


def _tags(section: type[BaseModel]) -> tuple[Any, ...]:
    return (
        get_args(section.model_fields["name"].annotation) if "name" in section.model_fields else ()
    )


def _stands_for_many(part: int | str) -> bool:
    """Tell whether a part of a location is a tag such as "<timm>", which covers many names."""
    return str(part).startswith("<")


def _members(annotation: Any) -> list[type[BaseModel]]:
    options = get_args(annotation) or (annotation,)
    bare = [get_args(one)[0] if get_origin(one) is Annotated else one for one in options]
    return [one for one in bare if isinstance(one, type) and issubclass(one, BaseModel)]
