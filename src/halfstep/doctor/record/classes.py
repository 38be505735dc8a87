"""Finds in the source of a program how its classes make their attributes and their layers."""

from __future__ import annotations

import ast
import inspect
import linecache
from typing import TYPE_CHECKING

from halfstep.doctor.record.source import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.record.sites import Mark


def file_of(kind: type) -> str:
    """Return the source file of a class, as its methods name it; "" if it is unknown."""
    methods = [inspect.unwrap(each) for each in vars(kind).values() if hasattr(each, "__code__")]
    codes = [each.__code__ for each in methods]
    named = next((each.co_filename for each in codes if each.co_filename[0] != "<"), "")
    if named:
        return named
    try:
        return inspect.getsourcefile(kind) or ""
    except (TypeError, OSError):
        return ""


def nodes_of(file: str) -> list[ast.AST]:
    """Return all nodes of a source file; none if it cannot be parsed."""
    try:
        return [*ast.walk(ast.parse("".join(linecache.getlines(file))))] if file else []
    except (SyntaxError, ValueError, RecursionError):
        return []


def assignment_of(kind: type, attribute: str) -> Mark | None:
    """Return the line at which a class assigns an attribute; None if it is unknown."""
    file = file_of(kind)
    for definition in nodes_of(file):
        if not isinstance(definition, ast.ClassDef) or definition.name != kind.__name__:
            continue
        for node in ast.walk(definition):
            given = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            if any(isinstance(each, ast.Attribute) and each.attr == attribute for each in given):
                assert isinstance(node, ast.stmt)
                return file, node.lineno, "__init__"
    return None


def repetition_of(files: list[str], layer: str) -> Mark | None:
    """Return the line that repeats one new layer in a list, as in `[Block()] * 6`.

    Args:
        files: The files of the program, in the order in which they are searched.
        layer: Class of the layer.

    Returns:
        The line; None if no line of the files repeats a list with a call of this class.
    """
    for file in files:
        for node in nodes_of(file):
            if any(layer == _name(each) for each in repeated_calls(node)):
                assert isinstance(node, ast.expr)
                return file, node.lineno, ""
    return None


def repeated_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls in a list that an expression multiplies by a number."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in (node.left, node.right):
            if isinstance(side, ast.List):
                yield from (each for each in side.elts if isinstance(each, ast.Call))


def without_repetition(text: str) -> str | None:
    """Return a statement that makes a new layer for each place of a list.

    Args:
        text: The statement, such as "self.blocks = nn.ModuleList([Block(width)] * depth)".

    Returns:
        The changed statement; None unless it repeats exactly one list with calls.
    """
    try:
        nodes = [each for each in ast.walk(ast.parse(text)) if any(repeated_calls(each))]
    except (SyntaxError, ValueError, RecursionError):
        return None
    if len(nodes) != 1 or not isinstance(node := nodes[0], ast.BinOp):
        return None
    layers, count = (
        (node.left, node.right) if isinstance(node.left, ast.List) else (node.right, node.left)
    )
    assert isinstance(layers, ast.List)
    whole, number = ast.get_source_segment(text, node), ast.unparse(count)
    made = [ast.unparse(each) for each in layers.elts]
    new = (
        f"[{made[0]} for _ in range({number})]"
        if len(made) == 1
        else f"[layer for _ in range({number}) for layer in ({', '.join(made)})]"
    )
    return text.replace(whole, new) if whole else None


def without_parameter(text: str) -> str | None:
    """Return an expression with the argument of its only `nn.Parameter` in place of the call."""
    try:
        calls = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.Call)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [each for each in calls if _name(each) == "Parameter"]
    if len(found) != 1 or len(found[0].args) != 1 or found[0].keywords:
        return None
    given = found[0].args[0]
    source = ast.get_source_segment(text, given)
    if source is None or isinstance(given, ast.Starred):
        return None
    is_closed = isinstance(given, ast.Call | ast.Name | ast.Attribute | ast.Subscript)
    return replaced(text, found[0], source if is_closed else f"({source})")


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
