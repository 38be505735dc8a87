"""Chooses where the engine or scaler is stored, so that all code that used amp can reach it.

Amp was global. The engine or scaler is a local variable if only the function that initializes amp
uses it, an attribute of `self` if only methods of one class use it, a global variable if only one
file uses it, and else a variable of a new file that all these files import.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from halfstep.migrate.program.layout import Layout
from halfstep.migrate.program.names import fresh
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.migrate.program.program import Program
    from halfstep.migrate.program.source import Function, Source

MODULE = "mixed_precision"
_TEXT = '''\
"""Holds the {name} of the program, which the files that train share, as they shared Apex's amp."""

{name} = None
'''


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A new file that holds the engine or scaler for the files that use it.

    Attributes:
        name: Its path.
        text: Its content.
        relative: Whether the program's files import each other only relatively.
    """

    name: str
    text: str
    relative: bool

    def import_in(self, name: str) -> str:
        """Write the import statement for the file `name`."""
        path = PurePath(self.name)
        if not self.relative:
            return f"import {path.stem}"
        depth = len(PurePath(name).parent.relative_to(path.parent).parts)
        return f"from {'.' * (depth + 1)} import {path.stem}"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the engine or scaler is stored.

    Attributes:
        object: The expression for it, such as `engine` or `self.engine`.
        global_in: Functions that assign it and have to declare it global.
        shared: The new file that holds it, or None.
    """

    object: str
    global_in: tuple[Function, ...] = ()
    shared: SharedFile | None = None


def place(program: Program, name: str, uses: Iterable[ast.AST]) -> Placement:
    """Choose where the engine or scaler is stored.

    Args:
        program: The parsed program.
        name: Its name; a variant is used if the program already has this name.
        uses: Nodes in which it will be used.
    """
    source, users = program.source, list(uses)
    built = [each for each in program.initializes if each.optimizers]
    homes = list(dict.fromkeys(each.function for each in built))
    functions = [home for home in homes if home is not None]
    files = {source.file(each) for each in (*users, *(each.call for each in built))}
    classes = {_class_of(program, each) for each in (*functions, *users)}
    method = len(functions) == len(homes) and len(classes) == 1 and None not in classes
    if len(files) > 1 and not method:
        shared = _shared_file(source, fresh(MODULE, program.names), name)
        return Placement(f"{PurePath(shared.name).stem}.{name}", (), shared)
    name = fresh(name, program.names)
    if len(functions) < len(homes):
        return Placement(name, tuple(functions))  # assigned at the top level of the module
    if len(functions) == 1 and all(functions[0] in source.above(each) for each in users):
        return Placement(name)
    if method:
        return Placement(f"self.{name}")
    return Placement(name, tuple(functions))


def _shared_file(source: Source, module: str, name: str) -> SharedFile:
    """Choose the folder of a new file: one from which the program's files import each other."""
    layout = Layout(each.name for each in source.files)
    roots = Counter(
        found.root
        for file in source.files
        for node in inner(file.module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for _, found in layout.imports(file.name, node)
        if found.name != file.name
    )
    absolute = [root for root, _ in roots.most_common() if root is not None]
    folders = [PurePath(each.name).parent for each in source.files]
    common = next(each for each in (folders[0], *folders[0].parents) if _holds(each, folders))
    folder = absolute[0] if absolute else common
    relative = not absolute and None in roots
    return SharedFile(str(folder / f"{module}.py"), _TEXT.format(name=name), relative)


def _holds(folder: PurePath, others: Iterable[PurePath]) -> bool:
    return all(folder == each or folder in each.parents for each in others)


def _class_of(program: Program, node: ast.AST) -> ast.ClassDef | None:
    """Return the class of the method that a node is or is in; None if it is in no method."""
    source = program.source
    around = [node, *source.above(node)]
    methods = [each for each in around if isinstance(each, ast.FunctionDef)]
    if not methods or not methods[-1].args.args or methods[-1].args.args[0].arg != "self":
        return None
    parent = source.parent[methods[-1]]
    return parent if isinstance(parent, ast.ClassDef) else None
