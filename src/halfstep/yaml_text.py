"""Reads and writes the YAML of configs: YAML 1.2, with ruamel.yaml's safe loader.

`1e-3` is a number, `on` and `no` are text, and a duplicate key is an error. Two features of YAML
that configs do not need are refused: keys that are not text, and aliases that expand a short text
to millions of values.
"""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from halfstep.errors import UserError

_MOST_VALUES = 100_000
_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


def parse(text: str, source: str) -> Any:
    """Convert a YAML text to plain Python data; errors call the text `source`.

    Raises:
        UserError: If the text is not valid YAML; the message has the line.
    """
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        if node is None:
            return None
        if _written_out(node, {}) > _MOST_VALUES:
            problem = f"its aliases make it more than {_MOST_VALUES:,} values; write it out"
            raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return yaml.constructor.construct_document(node)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}, line {mark.line + 1}" if mark and "\n" in text else source
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{where} is not valid YAML: {' '.join(str(problem).split())}") from error
    except (ValueError, RecursionError) as error:  # such as the date 2026-99-99, or 5,000 brackets
        raise UserError(f"{source} is not valid YAML: {error}") from error


def _written_out(node: Node, known: dict[Node, int]) -> int:
    """Return the number of values in a node after all aliases are expanded."""
    if node not in known:
        known[node] = 1  # ends the recursion if the node contains itself
        inner = node.value if isinstance(node, CollectionNode) else []
        if isinstance(node, MappingNode):
            for key, _ in inner:
                if key.tag not in {_TEXT, _MERGE}:
                    problem = f"the key {str(key.value)[:40]!r} is not text; write it in quotes"
                    raise MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            inner = [each for pair in inner for each in pair]
        known[node] = 1 + sum(_written_out(each, known) for each in inner)
    return known[node]


def dump(values: dict[str, Any]) -> str:
    """Return plain data as YAML that `parse` reads back to the same data."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.width = 1_000_000
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # typed as None
    yaml.Representer = _Representer
    text = io.StringIO()
    yaml.dump(values, text)
    return text.getvalue()


class _Representer(SafeRepresenter):
    """Writes data without aliases, in a form that `parse` reads back to the same data."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  (ruamel.yaml's signature)
        """Write repeated data in full instead of as an alias."""
        return True

    def represent_str(self, data: str) -> ScalarNode:
        """Quote a text that ruamel.yaml would write without quotes but could not read back."""
        style = '"' if data.startswith((":", "?")) or "\x85" in data else None
        return self.represent_scalar(_TEXT, data, style=style)


_Representer.add_representer(str, _Representer.represent_str)
