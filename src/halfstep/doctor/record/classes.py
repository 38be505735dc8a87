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


_REPEATING = {"fromkeys": 1, "repeat": 0}
"""The position of the repeated value among the arguments of the function."""


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
    """Return the line that repeats one new layer, as `[Block()] * 6` does.

    Args:
        files: The files of the program, in the order in which they are searched.
        layer: Class of the layer.

    Returns:
        The line; None if no line of the files repeats the result of one call of this class.
    """
    for file in files:
        for node in nodes_of(file):
            if any(layer == _name(each) for each in repeated_calls(node)):
                assert isinstance(node, ast.expr)
                return file, node.lineno, ""
    return None


def repeated_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that an expression makes once, and whose results it repeats.

    These are the calls in a list that is multiplied by a number, and the values in
    `dict.fromkeys(names, value)` and `itertools.repeat(value, count)`.
    """
    values: list[ast.expr] = []
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        lists = [each for each in (node.left, node.right) if isinstance(each, ast.List)]
        values = [value for each in lists for value in each.elts]
    elif isinstance(node, ast.Call) and _name(node) in _REPEATING:
        place = _REPEATING[_name(node)]
        values = node.args[place : place + 1]
    yield from (each for each in values if isinstance(each, ast.Call))


def without_repetition(text: str) -> str | None:
    """Return a statement that makes a new layer for each place of a container.

    Args:
        text: The statement, such as "self.blocks = nn.ModuleList([Block(width)] * depth)".

    Returns:
        The changed statement; None unless exactly one of its expressions repeats calls.
    """
    try:
        nodes = [each for each in ast.walk(ast.parse(text)) if any(repeated_calls(each))]
    except (SyntaxError, ValueError, RecursionError):
        return None
    if len(nodes) != 1:
        return None
    whole = ast.get_source_segment(text, nodes[0])
    new = _anew(nodes[0])
    return text.replace(whole, new) if whole and new else None


def _anew(node: ast.AST) -> str | None:
    if isinstance(node, ast.Call):
        if len(node.args) != 2 or node.keywords:
            return None
        first, second = (ast.unparse(each) for each in node.args)
        if _name(node) == "fromkeys":
            return f"{{name: {second} for name in {first}}}"
        return f"({first} for _ in range({second}))"
    if not isinstance(node, ast.BinOp):
        return None
    layers, count = (
        (node.left, node.right) if isinstance(node.left, ast.List) else (node.right, node.left)
    )
    assert isinstance(layers, ast.List)
    number = ast.unparse(count)
    made = [ast.unparse(each) for each in layers.elts]
    if len(made) == 1:
        return f"[{made[0]} for _ in range({number})]"
    return f"[layer for _ in range({number}) for layer in ({', '.join(made)})]"


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
