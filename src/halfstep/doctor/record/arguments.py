"""Finds the statement of a function that writes the parameter it is given, in the user's file.

A hook that is meant for a gradient may get the parameter: the same statement with `.grad` is then
what was meant.
"""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING

from halfstep.doctor.record.blocks import begins, parsed
from halfstep.doctor.record.source import difference, replaced
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    from halfstep.doctor.record.sites import Mark

_DATA = {"data", "detach"}
_NO_WRITES = {"requires_grad_", "retain_grad", "share_memory_"}
_NO_VALUES = {"grad", "shape", "size", "dtype", "device", "ndim", "numel", "requires_grad"}


@dataclass(frozen=True, slots=True)
class ArgumentWrite:
    """A statement that writes an argument.

    Attributes:
        mark: Its first line.
        change: The statement with the gradient in place of the argument, as a change of lines; ()
            if it already reads the gradient.
    """

    mark: Mark
    change: tuple[str, ...]


def argument_write(code: CodeType, position: int) -> ArgumentWrite | None:
    """Return the first statement of a function that writes an argument in place.

    Args:
        code: The code of the function.
        position: Index of the argument, from 0.
    """
    text = "".join(linecache.getlines(code.co_filename))
    tree = parsed(text)
    if tree is None or code.co_argcount <= position:
        return None
    name = code.co_varnames[position]
    for node in _writes(tree, code, name):
        first = begins((code.co_filename, node.lineno, code.co_name))
        mark = first or (code.co_filename, node.lineno, code.co_name)
        return ArgumentWrite(mark, _change(text, node, name, mark[1]))
    return None


def _writes(tree: ast.Module, code: CodeType, name: str) -> Iterator[ast.expr | ast.stmt]:
    for function in ast.walk(tree):
        if not _is_of(function, code):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call | ast.Assign | ast.AugAssign) and _is_write(node, name):
                yield node


def _is_of(node: ast.AST, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        names = [each.arg for each in node.args.args]
        is_same = names == [*code.co_varnames[: code.co_argcount]]
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno and is_same
    if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
        return False
    lines = [node.lineno, *(each.lineno for each in node.decorator_list)]
    return min(lines) == code.co_firstlineno


def _is_write(node: ast.Call | ast.Assign | ast.AugAssign, name: str) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        if not isinstance(function, ast.Attribute) or function.attr in _NO_WRITES:
            return False
        if not function.attr.endswith("_") or function.attr.endswith("__"):
            return False
        return _is_values(function.value, name) or (
            bool(node.args) and _is_values(node.args[0], name) and not _is_method(function, name)
        )
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if isinstance(node, ast.Assign):  # An assignment to the name alone binds another value.
        targets = [each for each in targets if not isinstance(each, ast.Name)]
    return any(_is_values(each, name) for each in targets)


def _is_method(function: ast.Attribute, name: str) -> bool:
    """Return whether a function is a method of another tensor, which the argument is given to."""
    return not (isinstance(function.value, ast.Name | ast.Attribute)) or any(
        isinstance(each, ast.Name) and each.id == name for each in ast.walk(function.value)
    )


def _is_values(node: ast.expr, name: str) -> bool:
    """Return whether an expression is the argument, its `.data`, or elements of them."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func
        elif isinstance(node, ast.Attribute) and node.attr in _DATA:
            node = node.value
        else:
            return False
    return node.id == name


def _change(text: str, node: ast.expr | ast.stmt, name: str, first: int) -> tuple[str, ...]:
    """Return a write with `name.grad` in place of the argument."""
    around = {id(child): each for each in ast.walk(node) for child in ast.iter_child_nodes(each)}
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
    if any(_attribute(each, around) == "grad" for each in names):
        return ()
    wanted: list[ast.expr] = []
    for each in names:
        parent, attribute = around.get(id(each)), _attribute(each, around)
        if attribute == "data" and isinstance(parent, ast.Attribute):
            wanted.append(parent)
        elif attribute in _NO_VALUES or (
            isinstance(parent, ast.Subscript) and parent.slice is each
        ):
            continue
        elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name):
            continue  # such as id(parameter)
        else:
            wanted.append(each)
    changed = text
    for part in sorted(wanted, key=lambda each: (-each.lineno, -each.col_offset)):
        changed = replaced(changed, part, f"{name}.grad")
    last = node.end_lineno or node.lineno
    old, new = ("\n".join(_lines(each, first, last)) for each in (text, changed))
    return difference(old, new)


def _attribute(node: ast.Name, around: dict[int, ast.AST]) -> str:
    parent = around.get(id(node))
    return parent.attr if isinstance(parent, ast.Attribute) else ""


def _lines(text: str, first: int, last: int) -> list[str]:
    return [each.strip() for each in text.split("\n")[first - 1 : last]]
