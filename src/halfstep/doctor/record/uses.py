"""Finds in the source of a program what it does with an object that it has given a name."""

from __future__ import annotations

import ast
import linecache
from typing import TYPE_CHECKING

from halfstep.doctor.record.classes import nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def attributes_of(name: str, files: Iterable[str]) -> frozenset[str] | None:
    """Return the attributes and methods of an object that the lines of a program name.

    Args:
        name: The variable, or the attribute, that the object is assigned to.
        files: The files of the program.

    Returns:
        Their names; None if the object may have other names, because a line passes it on, returns
        it, loops over it, or may look up any attribute.
    """
    found: set[str] = set()
    for file in files:
        if not any(name in line for line in linecache.getlines(file)):
            continue
        nodes = nodes_of(file)
        if not nodes:
            return None
        owners: dict[int, str] = {
            id(each.value): each.attr for each in nodes if isinstance(each, ast.Attribute)
        }
        for each in nodes:
            if isinstance(each, ast.Constant) and each.value == name:
                return None
            if _name(each) != name or not isinstance(getattr(each, "ctx", None), ast.Load):
                continue
            if id(each) not in owners:
                return None
            found.add(owners[id(each)])
    return frozenset(found)


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
