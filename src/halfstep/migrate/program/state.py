"""Functions that use only the state of a parameter, as amp, an engine and a scaler all have it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from halfstep.migrate.program.source import Function, Source

_STATE = ("state_dict", "load_state_dict")


def asks_for_state(source: Source, function: Function, name: str) -> bool:
    """Tell whether a function only saves, loads or tests a parameter."""
    for node in inner(function):
        if not isinstance(node, ast.Name) or node.id != name:
            continue
        parent = source.parent[node]
        state = isinstance(parent, ast.Attribute) and parent.attr in _STATE
        tested = isinstance(parent, ast.If | ast.IfExp) and parent.test is node
        if not state and not tested and not _is_compared(parent):
            return False
    return True


def _is_compared(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp) and not calls(node)
