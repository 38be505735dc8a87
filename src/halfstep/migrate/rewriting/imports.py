"""The imports of a rewritten program: adds new ones, and removes Apex's unused ones.

It also removes the code that found out whether Apex is installed: a `try` that only imports Apex,
with its handlers, and tests whose result is now known.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import (
    STARRED,
    FileImports,
    assigned,
    calls,
    is_apex,
    plain,
    used_names,
)
from halfstep.migrate.program.render import Edits, rendered
from halfstep.migrate.program.source import Function, Source, first_line, inner, suites

if TYPE_CHECKING:
    from collections.abc import Iterable


def with_imports(
    text: str,
    imports: Iterable[str],
    preamble: Iterable[str],
    reexported: set[str],
    answered: set[str],
) -> str:
    """Return a file with the new imports that it needs and without unused imports of Apex.

    Args:
        text: The rewritten file.
        imports: The import statements that the rewritten program needs.
        preamble: Statements that it needs after all imports.
        reexported: The names of parts of Apex that the file imports from another file.
        answered: Sources of tests that were already True or False in the original program; their
            `if`s are kept.
    """
    source = Source(text)
    module = source.files[0].module
    used = used_names(module)
    there = set().union(*map(_defined_in, module.body))
    added = [each for each in preamble if _defined_by(each) <= used - there]
    used = used.union(*(used_names(ast.parse(each)) for each in added))
    wanted = [line for line in imports if bound_by(line) in used]
    rebound = {bound_by(line) for line in wanted if line.startswith("from")}
    wanted = [line for line in wanted if not _is_there(source, line)]
    wanted.sort(key=lambda line: (line.startswith("from"), line))
    pruner = _Pruner(source, rebound, reexported, answered)
    pruner.prune(module)
    edits = pruner.edits
    body = module.body
    first = next((each for each in body if _imports_apex(each)), None)
    place = _after_imports(source)
    if wanted and first is not None:
        if first in edits.replaced:
            edits.replaced[first] = [*wanted, *edits.replaced[first]]
        else:
            edits.before[first] += wanted
    elif wanted:
        _insert(edits, body, place, wanted)
    if added:
        place = max(place, body.index(first) + 1 if first is not None else 0)
        blocks = []
        for each in added:
            blocks += [*([""] * (2 if "\n" in each.strip() else 1)), each.rstrip("\n")]
        following = body[place] if place < len(body) else None
        gap = 0 if following is None else _blank_before(source, following)
        blocks += [""] * max(0, (2 if "\n" in added[-1].strip() else 1) - gap)
        user = _first_user(body[:place], added)
        if user is not None:
            edits.before[user] += blocks
        else:
            _insert(edits, body, place, blocks)
    return rendered(source, edits)


def _insert(edits: Edits, body: list[ast.stmt], place: int, texts: list[str]) -> None:
    if place:
        edits.after[body[place - 1]] += texts
    elif body:
        edits.before[body[0]] += texts


def _first_user(body: list[ast.stmt], added: list[str]) -> ast.stmt | None:
    """Return the first statement that uses a name of `added` when the module is executed."""
    names = set().union(*map(_defined_by, added))
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        if any(isinstance(node, ast.Name) and node.id in names for node in inner(statement)):
            return statement
    return None


def bound_by(line: str) -> str:
    """Return the name that an import statement with one name binds."""
    (statement,) = ast.parse(line).body
    assert isinstance(statement, ast.Import | ast.ImportFrom)
    (alias,) = statement.names
    return alias.asname or alias.name.partition(".")[0]


def _defined_by(text: str) -> set[str]:
    """Return the names that statements define."""
    return set().union(*map(_defined_in, ast.parse(text).body))


def _defined_in(statement: ast.stmt) -> set[str]:
    if isinstance(statement, Function | ast.ClassDef):
        return {statement.name}
    return assigned(statement)


def _blank_before(source: Source, statement: ast.stmt) -> int:
    line = first_line(statement) - 2
    found = 0
    while line >= 0 and (
        not source.lines[line].strip() or source.lines[line].lstrip().startswith("#")
    ):
        found += not source.lines[line].strip()
        line -= 1
    return found


class _Pruner:
    """Removes unused names of Apex from imports, and the blocks that become empty."""

    def __init__(
        self, source: Source, rebound: set[str], reexported: set[str], answered: set[str]
    ) -> None:
        self.source = source
        self._reexported = reexported
        self._answered = answered
        self.edits = Edits()
        imports = FileImports(source.files[0].module)
        imports.exclude()
        others = imports.others
        self._used = {
            node.id
            for node in inner(source.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in others
        } - rebound
        self._bound = {
            alias.asname or alias.name.partition(".")[0]
            for each in inner(source.tree)
            if isinstance(each, ast.Import | ast.ImportFrom)
            for alias in each.names
            if self._is_apex(each, alias)
        }

    def prune(self, node: ast.AST) -> None:
        """Prune the statements in a node."""
        for suite in suites(node):
            for statement in suite:
                self._prune(statement)

    def _prune(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            self._import(statement)
            return
        self.prune(statement)
        if isinstance(statement, ast.Try):
            self._try(statement)
        elif isinstance(statement, ast.If):
            self._if(statement)
        elif isinstance(statement, ast.Global):
            self._global(statement)
        elif self._is_unset(statement) or (
            isinstance(statement, ast.Assert) and _is(statement.test, value=True)
        ):
            self._drop(statement)

    def _global(self, statement: ast.Global) -> None:
        """Remove unused names of Apex from a `global` statement."""
        kept = [name for name in statement.names if name not in self._bound - self._used]
        if len(kept) < len(statement.names):
            self.edits.replaced[statement] = [f"global {', '.join(kept)}"] if kept else []

    def _drop(self, statement: ast.stmt) -> None:
        self.edits.replaced[statement] = []

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        kept = [alias for alias in statement.names if self._is_kept(statement, alias)]
        if len(kept) == len(statement.names):
            return
        if not kept:
            self._drop(statement)
            return
        names = [f"{each.name} as {each.asname}" if each.asname else each.name for each in kept]
        head = "import"
        if isinstance(statement, ast.ImportFrom):
            head = f"from {'.' * statement.level}{statement.module or ''} import"
        self.edits.replaced[statement] = [f"{head} {', '.join(names)}"]

    def _is_kept(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
        if isinstance(statement, ast.ImportFrom):
            path = statement.module or ""
            if not self._is_apex(statement, alias):
                return True
            if alias.name == "*":
                names = STARRED.get(plain(path))
                return names is None or not self._used.isdisjoint(names)
        elif not is_apex(alias.name):
            return True
        return (alias.asname or alias.name.partition(".")[0]) in self._used

    def _gone(self, suite: list[ast.stmt]) -> bool:
        return all(self.edits.replaced.get(each, [""]) == [] for each in suite)

    def _try(self, statement: ast.Try) -> None:
        """Remove a `try` that only imports Apex, with its handlers; keep the rest of its body."""
        imports = [each for each in statement.body if isinstance(each, ast.Import | ast.ImportFrom)]
        apex = [each for each in imports if self.edits.replaced.get(each) == []]
        if not apex or len(apex) < len(imports) or not _only_imports(statement.body):
            return
        self.edits.replaced[statement] = [
            each
            for each in (statement.body, statement.orelse, statement.finalbody)
            if not self._gone(each)
        ]

    def _if(self, statement: ast.If) -> None:
        """Remove an `if` that only imports Apex; replace one with a constant test by its branch."""
        if self.source.code(statement.test) in self._answered:
            return
        if _is(statement.test, value=True):
            self.edits.replaced[statement] = [statement.body]
        elif _is(statement.test, value=False):
            self.edits.replaced[statement] = [statement.orelse] if statement.orelse else []
        elif self._gone(statement.body) and (not statement.orelse or self._gone(statement.orelse)):
            self._drop(statement)

    def _is_unset(self, statement: ast.stmt) -> bool:
        """Tell whether a statement is an `amp = None` whose name is not used any more."""
        return (
            isinstance(statement, ast.Assign)
            and isinstance(statement.value, ast.Constant)
            and statement.value.value is None
            and all(
                isinstance(each, ast.Name) and each.id in self._bound for each in statement.targets
            )
            and not any(
                isinstance(each, ast.Name) and each.id in self._used for each in statement.targets
            )
        )

    def _is_apex(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> bool:
        if isinstance(node, ast.Import):
            return is_apex(alias.name)
        own = not node.level and is_apex(f"{node.module}.{alias.name}")
        return own or (alias.asname or alias.name) in self._reexported


def _is(node: ast.expr, *, value: bool) -> bool:
    """Tell whether a test is always `value`, by a constant operand; it must not call anything."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or if value else ast.And):
        return not calls(node) and any(_is(each, value=value) for each in node.values)
    return isinstance(node, ast.Constant) and node.value is value


def _only_imports(body: list[ast.stmt]) -> bool:
    """Tell whether a suite only imports and sets flags, without values from calls."""
    kinds = ast.Import | ast.ImportFrom | ast.Assign | ast.Expr | ast.Pass | ast.Global
    return all(isinstance(each, kinds) for each in body) and not any(
        isinstance(each, ast.Assign) and calls(each) for each in body
    )


def _is_import(statement: ast.AST) -> bool:
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _imports_apex(node: ast.AST) -> bool:
    """Tell whether a statement at module level imports Apex, outside of functions and classes."""
    for each in inner(node, functions=False):
        if isinstance(each, Function | ast.ClassDef):
            return False
        if isinstance(each, ast.Import) and any(is_apex(alias.name) for alias in each.names):
            return True
        if isinstance(each, ast.ImportFrom) and not each.level:
            path = each.module or ""
            if any(is_apex(f"{path}.{alias.name}") for alias in each.names):
                return True
    return False


def _is_there(source: Source, line: str) -> bool:
    """Tell whether a module already has the import in `line`, perhaps with other names."""
    wanted = ast.parse(line).body[0]
    assert isinstance(wanted, ast.Import | ast.ImportFrom)
    alias = wanted.names[0]
    for statement in source.files[0].module.body:
        if type(statement) is not type(wanted):
            continue
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        if isinstance(wanted, ast.ImportFrom) and wanted.module != getattr(
            statement, "module", None
        ):
            continue
        if any(_binds(each, alias, statement) for each in statement.names):
            return True
    return False


def _binds(alias: ast.alias, wanted: ast.alias, statement: ast.stmt) -> bool:
    """Tell whether an alias binds the wanted name; `import torch.nn` binds `torch`."""
    path = alias.name.partition(".")[0] if isinstance(statement, ast.Import) else alias.name
    return alias.asname is None and path == wanted.name


def _after_imports(source: Source) -> int:
    """Return the index (from 0) after the docstring and the last import at the top of a module."""
    last = 0
    for place, statement in enumerate(source.files[0].module.body):
        docstring = (
            place == 0
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
        tried = isinstance(statement, ast.Try) and any(map(_is_import, statement.body))
        if _is_import(statement) or docstring or tried:
            last = place + 1
        elif isinstance(statement, Function | ast.ClassDef):
            break
    return last
