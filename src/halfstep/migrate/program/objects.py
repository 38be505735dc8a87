"""Which expressions of a program refer to the same object, found without running it.

An object gets further names where it is assigned, passed to a function, returned from one, or kept
in an attribute. `Objects` follows all of these, over functions, classes and files. It does not know
the order of statements: a name that refers to an object anywhere refers to it everywhere in its
scope.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import dotted, elements, last_name, parameters
from halfstep.migrate.program.source import Function, inner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.migrate.program.call_graph import CallGraph

Key = tuple[ast.AST, str]
"""A scope (function, class or module) and a name in it, such as `optimizer` or `self.optimizer`."""
WRAPPERS = {
    "DistributedDataParallel",
    "DDP",
    "ApexDDP",
    "DataParallel",
    "compile",
    "convert_syncbn_model",
    "convert_sync_batchnorm",
}
_SAME = {"to", "cuda", "cpu", "train", "eval", "float"}
"""Methods of a model that return the model."""


class Objects:
    """The names of a program, and between which of them objects are passed on.

    Args:
        graph: The call graph of the program.
    """

    def __init__(self, graph: CallGraph) -> None:
        self.graph = graph
        self.source, self.imports = graph.source, graph.imports
        self._stored: dict[ast.AST, set[str]] = {}
        for node in inner(self.source.tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._stored.setdefault(self.source.scope(node), set()).add(node.id)
            elif isinstance(node, Function):
                self._stored.setdefault(node, set()).update(parameters(node))
            elif isinstance(node, ast.Global):
                self._stored.setdefault(self.source.scope(node), set()).difference_update(
                    node.names
                )
        self._instances: dict[Key, ast.ClassDef] = {}
        self._made: set[Key] = set()
        self._into: dict[Key, set[Key]] = {}
        self._from: dict[Key, set[Key]] = {}
        self._pairs = [
            pair
            for node in inner(self.source.tree)
            if isinstance(node, ast.Assign | ast.Call)
            for pair in (
                self._assigned(node) if isinstance(node, ast.Assign) else self._passed(node)
            )
        ]
        known = -1
        while len(self._instances) > known:  # the class of `x` decides what `x.y` refers to
            known = len(self._instances)
            for target, value in self._pairs:
                self._edge(target, value)

    def key(self, node: ast.AST | None) -> Key | None:
        """Return the name that an expression refers to, with its scope; None if it is no name."""
        path = dotted(node)
        return None if path is None or node is None else self.key_at(path, node)

    def key_at(self, path: str, node: ast.AST) -> Key | None:
        """Return the name that `path`, such as `a.b`, refers to where a node is, with its scope."""
        root, _, rest = path.partition(".")
        if root == "self" and rest:
            class_ = self.source.class_(node)
            return self._through(class_, rest) if class_ is not None else None
        for function in self.source.functions(node):
            if root in self._stored.get(function, ()):
                return self._attribute((function, root), rest)
        defined = self.imports.defined(path, node)
        if defined is not None and defined[1]:
            root, _, rest = defined[1].partition(".")
            module = next(each.module for each in self.source.files if each.name == defined[0])
            return self._attribute((module, root), rest)
        return self._attribute((self.source.file(node).module, root), rest)

    def labelled(self, nodes: Iterable[ast.AST | None]) -> set[Key]:
        """Return all names of the objects that some expressions refer to."""
        start = {key for key in map(self.key, nodes) if key is not None}
        return _closure(_closure(start, self._from), self._into)

    def passed_on(self, nodes: Iterable[ast.AST | None]) -> set[Key]:
        """Return the names that get the objects of some expressions, except the expressions."""
        start = {key for key in map(self.key, nodes) if key is not None}
        found = _closure(start, self._into)
        return {key for key in found - start if not self._others(key, found)}

    def definitions(self, path: str, node: ast.AST) -> Iterator[Key]:
        """Yield the names from which the value of `path` certainly comes, the nearest first."""
        key, seen = self.key_at(path, node), set[Key]()
        while key is not None and key not in seen and key not in self._made:
            seen.add(key)
            before = self._from.get(key, set())
            key = next(iter(before)) if len(before) == 1 else None
            if key is not None:
                yield key

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """Return the class of the program that an expression is an object of, or None."""
        key = self.key(node)
        return None if key is None else self._instances.get(key)

    def texts(self, keys: set[Key]) -> Iterator[str]:
        """Yield the source of each expression that refers to a name in `keys`.

        An expression is left out if it refers to another object elsewhere in the program.
        """
        found: dict[str, bool] = {}
        for node in inner(self.source.tree):
            if isinstance(node, ast.Name | ast.Attribute):
                path, key = dotted(node), self.key(node)
                if path is not None and key is not None and (key in keys or key in self._made):
                    found[path] = found.get(path, True) and key in keys
        yield from (path for path, same in found.items() if same)

    def _others(self, key: Key, known: set[Key]) -> bool:
        """Tell whether a name may also refer to an object without a name in `known`."""
        return key in self._made or not self._from.get(key, set()) <= known

    def _through(self, class_: ast.ClassDef, rest: str) -> Key:
        """Return the name of an attribute of an object of a class."""
        return self._attribute(
            (self.graph.root_of(class_), f"self.{rest.partition('.')[0]}"), rest.partition(".")[2]
        )

    def _attribute(self, key: Key, rest: str) -> Key:
        if not rest:
            return key
        class_ = self._instances.get(key)
        return (key[0], f"{key[1]}.{rest}") if class_ is None else self._through(class_, rest)

    def _assigned(self, node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr | None]]:
        for target in node.targets:
            for values in self._results(node.value):
                targets = elements(target)
                if len(values) == len(targets):
                    yield from zip(targets, values, strict=True)

    def _results(self, value: ast.expr) -> Iterator[list[ast.expr]]:
        """Yield the expressions that a value may be: of a call, those that the function returns."""
        if isinstance(value, ast.Call):
            name = last_name(value.func)
            if name in WRAPPERS and value.args:
                yield [value.args[0]]
            elif name in _SAME and isinstance(value.func, ast.Attribute):
                yield [value.func.value]
            functions = [] if self.graph.class_of(value) else self.graph.called(value)
            returns = [
                node.value
                for function in functions
                for node in inner(function, functions=False)
                if isinstance(node, ast.Return) and node.value is not None
            ]
            yield from map(elements, returns)
            if not returns:
                yield [value]
        else:
            yield elements(value)

    def _passed(self, call: ast.Call) -> Iterator[tuple[ast.AST, ast.expr]]:
        """Yield each parameter that a call passes, with its argument."""
        for function in self.graph.called(call):
            arguments = {
                each.arg: each for each in inner(function.args) if isinstance(each, ast.arg)
            }
            for name, given in self.graph.passed(call, function):
                yield arguments[name], given

    def _edge(self, target: ast.AST, value: ast.expr | None) -> None:
        if isinstance(target, ast.arg):
            function = self.source.function(target)
            assert function is not None
            into: Key | None = (function, target.arg)
        else:
            into = self.key(target)
        if into is None:
            return
        source = self.key(value)
        class_ = self.graph.class_of(value) if isinstance(value, ast.Call) else None
        if source is None and isinstance(value, ast.Call):
            self._made.add(into)
        elif source is not None:
            self._into.setdefault(source, set()).add(into)
            self._from.setdefault(into, set()).add(source)
            class_ = self._instances.get(source)
        if class_ is not None:
            self._instances.setdefault(into, class_)


def _closure(start: set[Key], edges: dict[Key, set[Key]]) -> set[Key]:
    found, new = set(start), set(start)
    while new:
        new = {each for key in new for each in edges.get(key, ())} - found
        found |= new
    return found
