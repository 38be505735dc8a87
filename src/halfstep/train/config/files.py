"""Finds a config by name or path, and merges its `base`, the config and the caller's overrides.

    halfstep train digits --recipe fp16 --options optimizer.lr=0.02 epochs=3
    halfstep.train("digits", recipe="fp16", overrides={"optimizer.lr": 0.02, "epochs": 3})

Later values override earlier ones: mappings are merged key by key, other values are replaced, and
an empty mapping (`args: {}`) clears the earlier one. If the `name` of a section changes, the
section's earlier values are dropped, because the momentum of SGD, for example, has no meaning for
AdamW. In `data`, the fields that all sources have are kept: how images are loaded, resized and
augmented.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from halfstep import caller
from halfstep.errors import UserError, closest
from halfstep.recipe.table import is_file, written_out
from halfstep.train.config.data import of_every_source
from halfstep.train.config.errors import Source, one_line
from halfstep.train.config.run import RunConfig, expand
from halfstep.train.config.schema import Config
from halfstep.yaml_text import dump, parse

_FOLDER = Path(__file__).parents[2] / "configs"
_SUFFIXES = (".yaml", ".yml")
_KEY = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_OPTION = re.compile(rf"({_KEY.pattern})=(.*)", re.DOTALL)
_Run = TypeVar("_Run", bound=RunConfig)
Overrides = Sequence[str] | Mapping[str, Any]
"""Fields to override: texts "key.sub=value" with the value in YAML, or data by dotted name."""


def shipped() -> dict[str, Path]:
    """Return the configs that come with halfstep: name to file, in alphabetical order."""
    files = sorted(_FOLDER.rglob("*.yaml"))
    return {file.relative_to(_FOLDER).with_suffix("").as_posix(): file for file in files}


def load(
    config: str | Mapping[str, Any],
    options: Overrides = (),
    flags: Mapping[str, Any] | None = None,
    *,
    point: Sequence[str] = (),
) -> Config:
    """Load a config with its bases, apply overrides, and check it.

    Args:
        config: The name of a shipped config, the path of a YAML file, or the contents of such a
            file as a mapping.
        options: Overrides of fields.
        flags: Values of the caller's arguments by field ("recipe", "seed", "device"); None means
            not given. `options` may not set the same field.
        point: Overrides from one point of `--grid`, in the form of `options`, which they override.

    Raises:
        UserError: If a file, key or value is wrong; the message is one line.
    """
    sources = _sources(config)
    sources += [
        Source(
            caller.name(key),
            {key: _Cleared(value) if isinstance(value, Mapping) else value},
            is_config=False,
        )
        for key, value in (flags or {}).items()
        if value is not None
    ]
    merged: dict[str, Any] = {
        "recipe": Config.model_fields["recipe"].default,
        "data": {"name": Config.model_fields["data"].default.name},
    }
    for source in sources:
        merged = merge(merged, _expanded(source.label, source.values, merged["recipe"]))
    of_options, of_grid = _assignments(options, "overrides"), _assignments(point, "grid")
    overlay = _nested([*of_options, *of_grid])
    _refuse_twice(flags or {}, overlay)
    if "fp16" in overlay:
        # The flag is in the same call, so another recipe there contradicts fp16.
        flag = (flags or {}).get("recipe")
        overlay = ({} if flag is None else {"recipe": flag}) | overlay
        overlay = _expanded(caller.name("overrides"), overlay, merged["recipe"])
    if isinstance(overlay.get("recipe"), Mapping):
        _spell_out(merged)
    sources += [
        Source(caller.name("overrides"), overlay, is_config=False),
        Source(caller.name("grid"), _nested(of_grid), is_config=False),
    ]
    return check(merge(merged, overlay), sources)


def check(values: Mapping[str, Any], sources: Sequence[Source]) -> Config:
    """Check plain data, and return them as a config; see `check_as`."""
    return check_as(Config, values, sources)


def check_as(kind: type[_Run], values: Mapping[str, Any], sources: Sequence[Source]) -> _Run:
    """Check plain data, and return them as settings of this kind.

    Raises:
        UserError: If a key or value is wrong; the message names the source in `sources` that has
            it.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise UserError(one_line(error, kind, values, sources)) from error


def resolved(config: RunConfig) -> str:
    """Return the whole config, defaults included, as YAML that `load` accepts."""
    return dump(config.model_dump(mode="json"))


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted name."""
    if not isinstance(values, Mapping) or (prefix and not values):
        return {prefix: values}
    return {
        name: leaf
        for key, value in values.items()
        for name, leaf in flat(value, f"{prefix}.{key}".lstrip(".")).items()
    }


def find(config: str) -> Path:
    """Return the file of a config, by the name of a shipped config or by a path.

    Raises:
        UserError: If there is no such file; the message has the closest name, shipped or beside it.
    """
    known = shipped()
    if config in known:
        return known[config]
    path = Path(config)
    file, _, function = config.partition(":")
    if file.endswith(".py"):
        raise UserError(
            f"{file!r} is a Python file, and a config is YAML; halfstep init DIR writes one, and "
            f"only halfstep advise takes a model of yours: {file}:{function or 'FUNCTION'}"
        )
    if path.is_file():
        return path
    if (path / "config.yaml").is_file():
        raise UserError(f"{config!r} is a run and no config; write {path / 'config.yaml'}")
    if path.is_dir():
        raise UserError(f"{config!r} is a folder and no config; halfstep init {config} writes one")
    beside = [
        str(sibling) for suffix in _SUFFIXES for sibling in sorted(path.parent.glob(f"*{suffix}"))
    ]
    same = [sibling for sibling in beside if Path(sibling).stem in {path.name, path.stem}]
    hint = f"; did you mean {same[0]!r}?" if same else closest(config, [*known, *beside])
    if path.suffix in _SUFFIXES:
        raise UserError(
            f"no config file at {config!r}; halfstep init DIR writes one for your images; shipped "
            f"configs: {', '.join(known)}{hint}"
        )
    raise UserError(
        f"no config is named {config!r}; allowed: {', '.join(known)}, or the path of a .yaml file"
        f"{hint}"
    )


def parse_options(options: Overrides, argument: str = "overrides") -> dict[str, Any]:
    """Convert overrides to nested data; of equal keys the last counts.

    Args:
        options: The overrides.
        argument: The caller's argument with the overrides, for messages.

    Raises:
        UserError: If a text is not key=value, its value is not YAML, or a key is not a name.
    """
    return _nested(_assignments(options, argument))


def _assignments(options: Overrides, argument: str) -> list[tuple[str, Any]]:
    """Return the overrides as pairs of dotted name and plain data."""
    flag = caller.name(argument)
    if isinstance(options, Mapping):
        for key in options:
            if not (isinstance(key, str) and _KEY.fullmatch(key)):
                raise UserError(
                    f"{flag} has the key {key!r}; allowed: the name of a field, with dots; write "
                    f"{caller.fields({'optimizer.lr': 0.02})}"
                )
        return list(options.items())
    matches = [(option, _OPTION.fullmatch(option)) for option in options]
    wrong = next((option for option, match in matches if match is None), None)
    if wrong is not None:
        raise UserError(f"{flag} takes key=value, not {wrong!r}; write {flag} optimizer.lr=0.02")
    return [(match[1], parse(match[2], f"{flag} {option}")) for option, match in matches if match]


def _nested(assignments: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    overlay: dict[str, Any] = {}
    for key, value in assignments:
        nested = _Cleared() if value == {} else value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        if isinstance(nested.get("recipe"), Mapping):
            _spell_out(overlay)
        overlay = merge(overlay, nested)
    return overlay


def _refuse_twice(flags: Mapping[str, Any], overlay: Mapping[str, Any]) -> None:
    """Refuse a field that an argument sets and the overrides too; a field below it may be set."""
    set_by_options = flat(overlay)
    for key, value in flags.items():
        if value is not None and key in set_by_options:
            raise UserError(
                f"{caller.setting(**{key: value})} and {caller.fields({key: set_by_options[key]})} "
                f"both set {key}; write one"
            )


def _spell_out(values: dict[str, Any]) -> None:
    """Replace the name of a recipe by a mapping with that `base`, whose fields can be overridden.

    recipe.loss_scale.init=1024 then changes the current recipe, instead of an empty one.
    """
    recipe = written_out(values.get("recipe"))
    if isinstance(recipe, str):
        values["recipe"] = {"base": recipe}
    elif isinstance(recipe, Mapping):
        values["recipe"] = dict(recipe)


class _Cleared(dict[str, Any]):
    """A mapping that replaces the earlier values of its section instead of merging with them.

    An option with an empty mapping creates it; later options may add values to it.
    """


def merge(below: Mapping[str, Any], above: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Merge `above`, a config or its dotted `section`, over `below`; see the module's docstring."""
    laid = {
        key: _lay(below.get(key), value, f"{section}.{key}".lstrip("."))
        for key, value in above.items()
    }
    return {**below, **laid}


def _lay(below: Any, above: Any, section: str) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    if not above or isinstance(above, _Cleared):
        return above
    if below.get("name", above.get("name")) != above.get("name", below.get("name")):
        if section != "data":
            return above
        below = of_every_source(below, above["name"])
    merged = merge(below, above, section)
    return _Cleared(merged) if isinstance(below, _Cleared) else merged


def _sources(config: str | Mapping[str, Any]) -> list[Source]:
    """Return the sources of a config: its bases, then the config itself."""
    if isinstance(config, str):
        return _with_bases(find(config), ())
    values = {"name": "python", "description": "", **config}
    base = values.pop("base", None)
    return [*(_with_bases(find(str(base)), ()) if base else []), Source("config", values)]


def _with_bases(file: Path, above: tuple[Path, ...]) -> list[Source]:
    """Return the sources of a file: its bases, the most distant one first, then the file itself."""
    here = file.resolve()
    if here in above:
        circle = " -> ".join(path.name for path in (*above[above.index(here) :], here))
        raise UserError(f"configs inherit in a circle: {circle}; take one `base:` out")
    try:
        values = parse(file.read_text(encoding="utf-8"), str(file))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the config {str(file)!r}: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no config; allowed: lines such as 'epochs: 8'")
    if "objects" in values:
        raise UserError(
            f"{str(file)!r} is of a run by halfstep.fit, whose model, data and loss are objects of "
            "a program; run that program again"
        )
    if is_file(values.get("recipe")):
        values["recipe"] = written_out(file.parent / values["recipe"])
    base = values.pop("base", None)
    if not above:
        values.setdefault("name", _name(file))
        values.setdefault("description", "")
    if base is None:
        return [Source(str(file), values)]
    if not isinstance(base, str):
        raise UserError(f"{file}: base is {base!r}; allowed: a config's name or a relative path")
    beside = file.parent / base
    try:
        below = beside if beside.is_file() else find(base)
    except UserError as error:
        raise UserError(f"{file}: base: {error}") from error
    return [*_with_bases(below, (*above, here)), Source(str(file), values)]


def _expanded(label: str, values: Mapping[str, Any], below: Any) -> dict[str, Any]:
    try:
        return expand(values, below)
    except UserError as error:
        raise UserError(f"{label}: {error}") from error


def _name(file: Path) -> str:
    return next((name for name, path in shipped().items() if path == file), file.stem)
