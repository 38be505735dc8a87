"""Finds in the source of a program the values that it assigns and never reads.

A value is unread if no path from its assignment leads to a line that reads its name. Names that
functions inside the scope use, and names that begin with "_", are left out.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from halfstep.doctor.record.scope import inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*FUNCTIONS, ast.ClassDef)
_REFLECTION = frozenset({"locals", "globals", "vars", "eval", "exec"})
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def reads(node: ast.AST | None) -> set[str]:
    """Return the names that an expression or a statement reads, with those of functions in it."""
    if node is None:
        return set()
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store)
    }


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the named parameters of a function."""
    given = function.args
    return [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def unread(scope: Scope) -> dict[int, tuple[ast.stmt, set[str]]]:
    """Return the assignments and loops of a scope that bind names which nothing reads.

    Args:
        scope: A module that is run as a script, or a function.

    Returns:
        The statement and the names, by the identity of the statement.
    """
    nodes = [*inside(scope)]
    left_out: set[str] = set()
    for each in nodes:
        if isinstance(each, _SCOPES):
            left_out |= _free(each)
        elif isinstance(each, ast.Global | ast.Nonlocal):
            left_out |= {*each.names}
        elif isinstance(each, ast.Name) and each.id in _REFLECTION:
            return {}
    analysis = _Analysis()
    analysis.block(scope.body, set())
    kept = {
        key: (statement, {each for each in names - left_out if each[0] != "_"})
        for key, (statement, names) in analysis.found.items()
    }
    return {key: each for key, each in kept.items() if each[1]}


def _free(scope: ast.AST) -> set[str]:
    """Return the names that a function or a class reads and does not bind itself."""
    nodes = [*inside(scope)]
    bound = {
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    bound |= {each.arg for each in nodes if isinstance(each, ast.arg)}
    if isinstance(scope, ast.ClassDef):  # Its names are not those of the functions in it.
        bound = set()
    for each in nodes:
        if isinstance(each, ast.Global | ast.Nonlocal):
            bound -= {*each.names}
    own = {
        each.id
        for each in nodes
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store)
    }
    return own.union(*(_free(each) for each in nodes if isinstance(each, _SCOPES))) - bound


class _Analysis:
    """Goes through statements from the last one to the first, with the names read after each.

    Attributes:
        found: The statements that bind names which nothing reads, and these names.
    """

    def __init__(self) -> None:
        self.found: dict[int, tuple[ast.stmt, set[str]]] = {}
        self._loops: list[tuple[set[str], set[str]]] = []  # read after a break, after a continue
        self._always: set[str] = set()  # read by handlers of the blocks around
        self._ways: tuple[tuple[Any, Any], ...] = (
            (ast.Assign | ast.AnnAssign, self._assigned),
            (ast.If, self._chosen),
            (ast.For | ast.AsyncFor | ast.While, self._looped),
            (ast.With | ast.AsyncWith, self._managed),
            (ast.Try | ast.TryStar, self._tried),
            (ast.Return | ast.Raise, self._ended),
            (ast.Break | ast.Continue, self._left),
            (ast.AugAssign, self._increased),
        )

    def block(self, statements: Sequence[ast.stmt], after: set[str]) -> set[str]:
        """Return the names that are read from the beginning of a block on."""
        for each in reversed(statements):
            after = self._before(each, after | self._always)
        return after

    def _before(self, node: ast.stmt, after: set[str]) -> set[str]:
        for kinds, before in self._ways:
            if isinstance(node, kinds):
                found: set[str] = before(node, after)
                return found
        return after | reads(node)

    def _chosen(self, node: ast.If, after: set[str]) -> set[str]:
        return reads(node.test) | self.block(node.body, after) | self.block(node.orelse, after)

    def _managed(self, node: ast.With | ast.AsyncWith, after: set[str]) -> set[str]:
        # A context may end its block early, as suppress() does.
        return after | self.block(node.body, after).union(*map(reads, node.items))

    def _ended(self, node: ast.Return | ast.Raise, after: set[str]) -> set[str]:
        del after
        return reads(node) | self._always

    def _left(self, node: ast.Break | ast.Continue, after: set[str]) -> set[str]:
        return {*self._loops[-1][isinstance(node, ast.Continue)]} if self._loops else after

    def _increased(self, node: ast.AugAssign, after: set[str]) -> set[str]:
        return after | reads(node) | {*_names(node.target)}

    def _assigned(self, node: ast.Assign | ast.AnnAssign, after: set[str]) -> set[str]:
        if node.value is None:
            return after
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        bound = {name for each in targets for name in _names(each)}
        self.found[id(node)] = node, bound - after
        return (after - bound) | reads(node.value).union(*map(reads, targets))

    def _looped(self, node: ast.For | ast.AsyncFor | ast.While, after: set[str]) -> set[str]:
        test = reads(node.test) if isinstance(node, ast.While) else reads(node.iter)
        bound = set() if isinstance(node, ast.While) else {*_names(node.target)}
        end = self.block(node.orelse, after)
        head = end | (test if isinstance(node, ast.While) else set())
        while True:
            self._loops.append((after, head))
            body = self.block(node.body, head)
            self._loops.pop()
            self.found[id(node)] = node, bound - body
            more = head | (body - bound)
            if more == head:
                return head | test
            head = more

    def _tried(self, node: ast.Try | ast.TryStar, after: set[str]) -> set[str]:
        after = self.block(node.finalbody, after)
        handled = after.union(*(self.block(each.body, after) for each in node.handlers))
        around, self._always = self._always, self._always | handled
        found = self.block(node.body, self.block(node.orelse, after))
        self._always = around
        return found | handled


def _names(target: ast.expr) -> Iterator[str]:
    """Yield the names that a target binds."""
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _names(each)


def unpackings(target: ast.expr) -> Iterator[tuple[str, ...]]:
    """Yield the names that each tuple in a target binds; "" for other targets than a name."""
    if isinstance(target, ast.Tuple | ast.List):
        yield tuple(each.id if isinstance(each, ast.Name) else "" for each in target.elts)
        for each in target.elts:
            yield from unpackings(each)


def entries_beside(tree: ast.AST, scope: Scope, entry: ast.expr) -> tuple[str, tuple[str, ...]]:
    """Return the name of a dict of which an expression is an entry, and the keys read beside it.

    Args:
        tree: The file.
        scope: A function in it, or the file.
        entry: The expression.

    Returns:
        The name and the keys; ("", ()) if the expression is no such entry, if the file names its
        key again, or if the scope uses the whole dict.
    """
    name, key = _entry(entry)
    read = [_entry(each) for each in ast.walk(scope)]
    uses = [each for each in ast.walk(scope) if isinstance(each, ast.Name) and each.id == name]
    written = {
        id(its) for each in ast.walk(tree) if isinstance(each, ast.Dict) for its in each.keys
    }
    named = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Constant) and each.value == key and id(each) not in written
    ]
    loads = sum(isinstance(each.ctx, ast.Load) for each in uses)
    if not key or len(named) > 1 or loads > sum(of == name for of, _ in read):
        return "", ()
    return name, tuple(dict.fromkeys(its for of, its in read if of == name and its != key))


def _entry(node: ast.AST) -> tuple[str, str]:
    """Return the name of a dict and the key of an entry that is read; ("", "") for others."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        name, key = node.value, node.slice
        if isinstance(name, ast.Name) and isinstance(key, ast.Constant):
            return (name.id, key.value) if isinstance(key.value, str) else ("", "")
    return "", ""


def functions_among(nodes: Iterable[ast.AST]) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the functions among the nodes of a file."""
    return [each for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def lines_binding(scope: Scope, name: str) -> list[int]:
    """Return the lines of a scope that bind a name."""
    return [
        each.lineno
        for each in inside(scope)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id == name
    ]
