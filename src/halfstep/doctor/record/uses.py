"""Finds in the source of a program what it does with an object that it has given a name."""

from __future__ import annotations

import ast
import linecache
import re
from typing import TYPE_CHECKING

from halfstep.doctor.record.classes import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def attributes_of(name: str, files: Iterable[str]) -> frozenset[str] | None:
    """Return the attributes and methods of an object that the lines of a program name.

    Lines of methods that all subclasses override do not count.

    Args:
        name: The variable, or the attribute, that the object is assigned to.
        files: The files of the program.

    Returns:
        Their names; None if the object may have other names, because a line passes it on, returns
        it, loops over it, or may look up any attribute.
    """
    found: set[str] = set()
    files = [*files]
    for file in files:
        if not any(name in line for line in linecache.getlines(file)):
            continue
        nodes = nodes_of(file)
        if not nodes:
            return None
        owners: dict[int, str] = {
            id(each.value): each.attr for each in nodes if isinstance(each, ast.Attribute)
        }
        overridden = _overridden(nodes, [each for each in files if each != file])
        for each in nodes:
            if id(each) in overridden:
                continue
            if isinstance(each, ast.Constant) and each.value == name:
                return None
            if _name(each) != name or not isinstance(getattr(each, "ctx", None), ast.Load):
                continue
            if id(each) not in owners:
                return None
            found.add(owners[id(each)])
    return frozenset(found)


def _overridden(nodes: list[ast.AST], others: list[str]) -> set[int]:
    """Return the `id` of nodes in methods of base classes that never run.

    The program only derives classes from such a class. All of them have methods of this name, and
    call no methods of their base class by this name.

    Args:
        nodes: The nodes of a file.
        others: The other files of the program.
    """
    classes = [each for each in nodes if isinstance(each, ast.ClassDef)]
    bases = {id(base) for each in classes for base in each.bases}
    used = {_name(each) for each in nodes if id(each) not in bases}
    found: set[int] = set()
    for kind in classes:
        heirs = [each for each in classes if kind.name in map(_name, each.bases)]
        if not heirs or kind.name in used or _are_in(kind.name, others):
            continue
        for method in kind.body:
            if isinstance(method, ast.FunctionDef) and all(
                _overrides(each, method.name) for each in heirs
            ):
                found |= set(map(id, ast.walk(method)))
    return found


def _are_in(name: str, files: list[str]) -> bool:
    word = re.compile(rf"\b{name}\b")
    return any(word.search(line) for file in files for line in linecache.getlines(file))


def _overrides(kind: ast.ClassDef, name: str) -> bool:
    """Return whether a class has a method of its own, and never calls that of its base class."""
    calls = (
        isinstance(each, ast.Attribute)
        and each.attr == name
        and isinstance(each.value, ast.Call)
        and _name(each.value.func) == "super"
        for each in ast.walk(kind)
    )
    has = any(isinstance(each, ast.FunctionDef) and each.name == name for each in kind.body)
    return has and not any(calls)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
