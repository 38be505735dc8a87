"""Amp as an argument of functions that only use its state.

`save_checkpoint(model, optimizer, amp)` works in the same way with an engine or a scaler, because
both have `state_dict` and `load_state_dict`.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from halfstep.migrate.program.state import asks_for_state

if TYPE_CHECKING:
    from halfstep.migrate.program.program import Program
    from halfstep.migrate.program.source import Function

NOTE = "`{}` now gets {} instead of amp; it has `state_dict` and `load_state_dict`, as amp had"
_SAVES = re.compile(r"save|load|checkpoint|ckpt|resume|restore|snapshot", re.IGNORECASE)


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
    return name in aliases or (name is not None and asks_for_state(program.source, function, name))
