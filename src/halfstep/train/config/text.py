"""YAML as configs use it: safe, and without the traps that silently change a value.

Two rules differ from PyYAML's: `1e-3` is a number (as in YAML 1.2, and as everyone means it), and a
key written twice is an error.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from halfstep.errors import UserError

_MOST_VALUES = 100_000


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with numbers as in YAML 1.2 and unique, textual keys."""

    def get_single_node(self) -> yaml.Node | None:
        """Refuse aliases of aliases that make a page of text into millions of values."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _written_out(node) > _MOST_VALUES:
            problem = f"its aliases make it more than {_MOST_VALUES:,} values; write it out"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse keys that are no text or that stand twice; then as PyYAML does."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                problem = f"the key {key!r} is not text; write it in quotes"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            if key in seen:
                problem = f"the key {key!r} is written twice; leave one of them out"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _written_out(node: yaml.Node, known: dict[yaml.Node, int] | None = None) -> int:
    """Return how many values a node holds where each alias counts as what it stands for."""
    known = {} if known is None else known
    if node not in known:
        known[node] = 1  # a node may hold itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        flat = (each for pair in inner for each in (pair if isinstance(pair, tuple) else (pair,)))
        known[node] = 1 + sum(_written_out(each, known) for each in flat)
    return known[node]


def parse(text: str, source: str) -> Any:
    """Return what a YAML text says, as plain Python data.

    Args:
        text: One YAML document.
        source: What errors call it: a file's name or an option as it was typed.

    Raises:
        UserError: If it is not YAML; the message has the line.
    """
    try:
        return yaml.load(text, _Loader)  # noqa: S506  (it is a SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark and "\n" in text else source
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{where} is not valid YAML: {' '.join(str(problem).split())}") from error
    except (ValueError, RecursionError) as error:  # such as the date 2026-99-99, or 5,000 brackets
        raise UserError(f"{source} is not valid YAML: {error}") from error


def dump(values: dict[str, Any]) -> str:
    """Return plain data as YAML that `parse` reads back to the same data."""
    return yaml.dump(
        values,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=1_000_000,
    )


class _Dumper(yaml.SafeDumper):
    """Writes what it is told in full: no anchors that a reader must look up."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  (PyYAML's signature)
        """Repeat data instead of pointing at it."""
        return True


# For the dumper too, which puts text that would be read as a number in quotes.
for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\.\d+|\d+(\.\d*)?)[eE][-+]?\d+$"),
        list("-+.0123456789"),
    )
