"""The imports of a rewritten program: new ones in, Apex's out as far as nothing uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from halfstep.migrate.layout import leading, lines, preceded
from halfstep.migrate.names import STARRED, code, dotted, is_apex, plain, statements, used_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def with_imports(
    module: cst.Module, imports: Iterable[str], preamble: Iterable[str], rebound: set[str]
) -> cst.Module:
    """Return a program with other imports.

    Args:
        module: The rewritten program.
        imports: Lines to import what it needs now.
        preamble: Statements that go behind all imports.
        rebound: Names of Apex's that `imports` bind now.
    """
    wanted = [line for line in imports if not _is_there(module, line)]
    wanted.sort(key=lambda line: (line.startswith("from"), line))
    prune = _Prune(used_names(module.visit(_WithoutImports())) - rebound)
    body: list[cst.BaseStatement] = []
    for statement in module.body:
        assert isinstance(statement, cst.BaseStatement)
        had = _imports_apex(statement)
        kept = statement.visit(prune)
        if had and wanted:
            body += _headed_like(statement, wanted)
            if isinstance(kept, cst.BaseStatement):
                kept = kept.with_changes(leading_lines=())
            wanted = []
        if isinstance(kept, cst.BaseStatement):
            body.append(kept)
        elif not had and isinstance(kept, cst.FlattenSentinel):
            body += [each for each in kept if isinstance(each, cst.BaseStatement)]
    at = _after_imports(body)
    added = [statement for line in wanted for statement in lines(line)]
    for text in preamble:
        many = text.count("\n") > 1
        blank = [cst.EmptyLine(indent=False)] * (2 if many else 1)
        added += [preceded(each, blank) for each in lines(text)]
    if preamble_ends(added) and at < len(body):
        blanks = [line for line in leading(body[at]) if line.comment is None]
        missing = 2 - len(blanks) if isinstance(added[-1], cst.FunctionDef) else 1 - len(blanks)
        body[at] = preceded(body[at], [cst.EmptyLine(indent=False) for _ in range(missing)])
    return module.with_changes(body=[*body[:at], *added, *body[at:]])


def preamble_ends(added: Sequence[cst.BaseStatement]) -> bool:
    """Tell whether something other than imports was added."""
    return bool(added) and not _is_import(added[-1])


def _headed_like(old: cst.BaseStatement, wanted: Sequence[str]) -> list[cst.BaseStatement]:
    written = [statement for line in wanted for statement in lines(line)]
    written[0] = preceded(written[0], leading(old))
    return written


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], cst.Import | cst.ImportFrom
    )


def _is_there(module: cst.Module, line: str) -> bool:
    """Tell whether a module imports what a line would, perhaps among other things."""
    new = cst.parse_statement(line)
    assert isinstance(new, cst.SimpleStatementLine)
    for each in module.body:
        for old in each.body if isinstance(each, cst.SimpleStatementLine) else ():
            if code(old) == line:
                return True
            if isinstance(old, cst.Import) and isinstance(new.body[0], cst.Import):
                plain = {code(alias.name) for alias in old.names if alias.asname is None}
                if {code(alias.name) for alias in new.body[0].names} <= plain:
                    return True
    return False


def _after_imports(body: Sequence[cst.BaseStatement]) -> int:
    """Return the place behind the imports at the top of a module, and behind its docstring."""
    last = 0
    for place, statement in enumerate(body):
        docstring = place == 0 and code(statement).startswith(('"', "'", 'r"'))
        tried = isinstance(statement, cst.Try) and any(map(_is_import, statements(statement.body)))
        if _is_import(statement) or docstring or tried:
            last = place + 1
        elif isinstance(statement, cst.FunctionDef | cst.ClassDef):
            break
    return last


def _imports_apex(node: cst.CSTNode) -> bool:
    """Tell whether a statement of a module imports Apex, apart from functions in it."""
    found = False

    class Look(cst.CSTVisitor):
        def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:  # noqa: N802  (libcst's)
            del node
            return False

        def visit_ImportAlias(self, node: cst.ImportAlias) -> None:  # noqa: N802
            nonlocal found
            found = found or is_apex(dotted(node.name) or "")

        def visit_ImportFrom(self, node: cst.ImportFrom) -> None:  # noqa: N802
            nonlocal found
            found = found or _from_apex(node)

    node.visit(Look())
    return found


def _from_apex(node: cst.ImportFrom) -> bool:
    module = dotted(node.module) or ""
    if is_apex(module):
        return True
    return (
        module == "halfstep"
        and not isinstance(node.names, cst.ImportStar)
        and any(code(alias.name) == "apex" for alias in node.names)
    )


class _WithoutImports(cst.CSTTransformer):
    """Leaves of a program what may use a name: no imports, nor names that are only assigned."""

    def leave_AssignTarget(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        del original_node
        name = isinstance(updated_node.target, cst.Name)
        return updated_node.with_changes(target=cst.Name("_")) if name else updated_node

    def leave_Import(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        del original_node, updated_node
        return cst.RemoveFromParent()

    def leave_ImportFrom(self, original_node: Any, updated_node: Any) -> Any:  # noqa: N802
        del original_node, updated_node
        return cst.RemoveFromParent()


class _Prune(cst.CSTTransformer):
    """Removes Apex's names from imports where nothing uses them, and what is empty then."""

    def __init__(self, used: set[str]) -> None:
        super().__init__()
        self._used = used

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> Any:  # noqa: N802
        del original_node
        kept = [
            alias
            for alias in updated_node.names
            if not is_apex(dotted(alias.name) or "") or self._is_used(alias)
        ]
        return _with_names(updated_node, kept)

    def leave_ImportFrom(  # noqa: N802
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> Any:
        if not _from_apex(original_node):
            return updated_node
        if isinstance(updated_node.names, cst.ImportStar):
            names = STARRED.get(plain(dotted(original_node.module) or ""))
            used = names is None or not self._used.isdisjoint(names)
            return updated_node if used else cst.RemoveFromParent()
        own = is_apex(dotted(original_node.module) or "")
        kept = [
            alias
            for alias in updated_node.names
            if (not own and code(alias.name) != "apex") or self._is_used(alias)
        ]
        return _with_names(updated_node, kept)

    def _is_used(self, alias: cst.ImportAlias) -> bool:
        bound = code(alias.asname.name) if alias.asname else code(alias.name).split(".")[0]
        return bound in self._used

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        del original_node
        return updated_node if updated_node.body else cst.RemoveFromParent()

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> Any:  # noqa: N802
        """Remove a `try` that only imported Apex, with what it said when that failed."""
        if not statements(updated_node.body) and statements(original_node.body):
            rest = [] if updated_node.orelse is None else statements(updated_node.orelse.body)
            return cst.FlattenSentinel(rest) if rest else cst.RemoveFromParent()
        return updated_node

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:  # noqa: N802
        """Remove an `if` that only imported Apex."""
        if not statements(updated_node.body) and statements(original_node.body):
            if updated_node.orelse is None:
                return cst.RemoveFromParent()
            block = cst.IndentedBlock(body=lines("pass"))
            return updated_node.with_changes(body=block)
        return updated_node


def _with_names(node: Any, kept: list[cst.ImportAlias]) -> Any:
    if len(kept) == len(node.names):
        return node
    if not kept:
        return cst.RemoveFromParent()
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(names=kept)
