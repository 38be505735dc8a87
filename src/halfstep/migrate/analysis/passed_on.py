"""Amp as an argument of functions that only use its state.

`save_checkpoint(model, optimizer, amp)` works in the same way with an engine or a scaler, because
both have `state_dict` and `load_state_dict`.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from halfstep.migrate.program.program import Program
    from halfstep.migrate.program.source import Function

NOTE = "`{}` now gets {} instead of amp; it has `state_dict` and `load_state_dict`, as amp had"
_STATE = ("state_dict", "load_state_dict")
_SAVES = re.compile(r"save|load|checkpoint|ckpt|resume|restore|snapshot", re.IGNORECASE)


def asks_for_state(program: Program, function: Function, name: str) -> bool:
    """Tell whether a function only saves, loads or tests a parameter."""
    source = program.source
    for node in inner(function):
        if not isinstance(node, ast.Name) or node.id != name:
            continue
        parent = source.parent[node]
        state = isinstance(parent, ast.Attribute) and parent.attr in _STATE
        tested = isinstance(parent, ast.If | ast.IfExp) and parent.test is node
        if not state and not tested and not _is_compared(parent):
            return False
    return True


def saves(program: Program, node: ast.expr) -> str | None:
    """Return the source of the function that gets an argument, if its name is about saving."""
    call = program.source.parent[node]
    if isinstance(call, ast.keyword):
        call = program.source.parent[call]
    if not isinstance(call, ast.Call) or call.func is node:
        return None
    path = program.source.code(call.func)
    return path if _SAVES.search(path) else None


def takes_state(program: Program, node: ast.expr) -> bool:
    """Tell whether an argument is passed to a function of the program that only uses its state."""
    call = program.source.parent[node]
    if isinstance(call, ast.keyword):
        call = program.source.parent[call]
    if not isinstance(call, ast.Call) or call.func is node:
        return False
    found = program.graph.called(call)
    return bool(found) and all(_asks(program, each, call, node) for each in found)


def _asks(program: Program, function: Function, call: ast.Call, node: ast.expr) -> bool:
    """Tell whether a function only uses the state of the parameter that gets an argument."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    if names[:1] == ["self"]:
        names = names[1:]
    keywords = {each.value: each.arg for each in call.keywords}
    if node in keywords:
        name = keywords[node]
    elif node in call.args and call.args.index(node) < len(names):
        name = names[call.args.index(node)]
    else:
        return False
    aliases = {each for each in names if program.imports.of(function).bound.get(each) == "apex.amp"}
    return name in aliases or (name is not None and asks_for_state(program, function, name))


def _is_compared(node: ast.AST) -> bool:
    return isinstance(node, ast.Compare | ast.BoolOp) and not calls(node)
