"""Where what takes amp's place lives, so that every function that used amp can reach it.

Amp was a global of its own. What takes its place is local to the function that initialized amp if
nobody else used it, an attribute where only methods of one class did, and else a global.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from halfstep.migrate.layout import leading, lines
from halfstep.migrate.names import assigned_names, fresh, used_names

if TYPE_CHECKING:
    from halfstep.migrate.program import Program, Scope


@dataclass(frozen=True, slots=True)
class Placement:
    """Where it lives.

    Attributes:
        object: How it is written: `engine` or `self.engine`.
        global_in: Functions that bind it and have to declare it global.
        reached_from: Functions and classes that it can be used in; empty for all.
    """

    object: str
    global_in: tuple[cst.FunctionDef, ...] = ()
    reached_from: tuple[cst.CSTNode, ...] = ()

    @property
    def everywhere(self) -> bool:
        """Whether every function can use it."""
        return not self.reached_from


def place(program: Program, name: str) -> Placement:
    """Choose where `name`, or a free variant of it, lives."""
    name = fresh(name, program.names)
    homes = [initialize.scope for initialize in program.initializes]
    functions = [scope.function for scope in homes if scope.function is not None]
    if len(functions) < len(homes):
        return Placement(name, tuple(functions))  # the module itself binds it
    if len(set(functions)) == 1 and {scope.function for scope in program.uses} == set(functions):
        return Placement(name, reached_from=tuple(functions))
    if _of_one_class(program, homes):
        classes = [scope.class_ for scope in homes if scope.class_ is not None]
        return Placement(f"self.{name}", reached_from=tuple(classes))
    return Placement(name, tuple(functions))


def _of_one_class(program: Program, homes: list[Scope]) -> bool:
    classes = {scope.class_ for scope in program.uses}
    if len(classes) != 1 or None in classes:
        return False
    return all(
        home.function is not None
        and home.function.params.params
        and home.function.params.params[0].name.value == "self"
        for home in homes
    )


def declared_global(
    where: Placement, old: cst.FunctionDef, new: cst.FunctionDef
) -> cst.FunctionDef:
    """Return a function that declares what it binds global, if it has to."""
    if old not in where.global_in or not isinstance(new.body, cst.IndentedBlock):
        return new
    statement = lines(f"global {where.object}")[0]
    body = list(new.body.body)
    at = 1 if new.get_docstring() is not None else 0
    if at < len(body):
        own = leading(body[at])
        if own and own[0].comment is None:
            statement = statement.with_changes(leading_lines=own[:1])
            body[at] = body[at].with_changes(leading_lines=own[1:])
    body.insert(at, statement)
    return new.with_changes(body=new.body.with_changes(body=body))


def names_at_home(program: Program) -> set[str]:
    """Return the names that are known where amp is initialized."""
    known: set[str] = set()
    for statement in program.module.body:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            known.add(statement.name.value)
        elif isinstance(statement, cst.SimpleStatementLine | cst.Try | cst.If | cst.With):
            known |= assigned_names(statement) | _imported(statement)
    for initialize in program.initializes:
        if initialize.scope.function is not None:
            known |= assigned_names(initialize.scope.function)
    known |= _globals(program.module)
    return known | {"None", "True", "False", "float", "int", "len", "max", "min", "str"}


def _imported(node: cst.CSTNode) -> set[str]:
    found: set[str] = set()

    class Look(cst.CSTVisitor):
        def visit_ImportAlias(self, node: cst.ImportAlias) -> None:  # noqa: N802  (libcst's)
            found.update(used_names(node.asname.name if node.asname else node.name))

    node.visit(Look())
    return found


def _globals(module: cst.Module) -> set[str]:
    found: set[str] = set()

    class Look(cst.CSTVisitor):
        def visit_NameItem(self, node: cst.NameItem) -> None:  # noqa: N802
            found.add(node.name.value)

    module.visit(Look())
    return found
