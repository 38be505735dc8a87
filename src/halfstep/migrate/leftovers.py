"""What of Apex a statement still has after it was rewritten, each with what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from halfstep.migrate.names import STARRED, dotted, is_apex, plain

if TYPE_CHECKING:
    from halfstep.migrate.program import Program

RUNS_UNCHANGED = "has no counterpart; `python -m halfstep.apex` runs it as it is"
NOT_OURS = "has no counterpart, in halfstep.apex neither: it needs NVIDIA's own Apex"
STARS = "what `*` binds cannot be seen here; import it by name, and migrate again"
_UNNAMED = {"apex", *STARRED}
"""Modules: what matters is the name that a program takes from them."""


def leftovers(program: Program, statement: cst.BaseStatement, rebound: set[str]) -> list[str]:
    """Say what of Apex a statement still has, apart from the statements in it.

    Args:
        program: The facts.
        statement: The statement, rewritten.
        rebound: Names of Apex's that are imported from elsewhere now.
    """
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    if isinstance(small, cst.ImportFrom) and isinstance(small.names, cst.ImportStar):
        path = dotted(small.module) or ""
        return [STARS] if is_apex(path) and plain(path) not in STARRED else []
    if isinstance(small, cst.Import | cst.ImportFrom):
        return []
    found: list[str] = []

    class Look(cst.CSTVisitor):
        def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:  # noqa: N802  (libcst's)
            del node
            return False

        def visit_Attribute(self, node: cst.Attribute) -> bool:  # noqa: N802
            return not self._left(node)

        def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
            self._left(node)

        def _left(self, node: cst.Attribute | cst.Name) -> bool:
            name = program.imports.qualified(node)
            if name is not None and name not in _UNNAMED and dotted(node) not in rebound:
                ours = ".".join(name.split(".")[:2]) in STARRED
                found.append(f"{name} {RUNS_UNCHANGED if ours else NOT_OURS}")
            return name is not None

    statement.visit(Look())
    return found
