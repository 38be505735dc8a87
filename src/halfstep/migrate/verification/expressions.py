"""The values of expressions, and the calls outside of autocast that these come from."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import dotted, last_name, parameters
from halfstep.migrate.program.source import Function, inner
from halfstep.migrate.verification.values import (
    FILLING,
    MODEL,
    NOTHING,
    OUTPUT,
    PROPERTIES,
    Kind,
    Value,
    autocasts,
    constructs_module,
    moved,
)
from halfstep.migrate.verification.variables import Frame, Values, Variables, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.migrate.program.call_graph import CallGraph

_DEEPEST = 10
"""The largest number of nested calls that are followed."""
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


@dataclass
class Expressions:
    """Evaluates expressions abstractly.

    Args:
        variables: The variables of the program.
        graph: Its call graph.
        sinks: The functions whose first argument is a loss to scale, such as "engine.backward".
        execute: Executes the body of the function of a frame.

    Attributes:
        reaching: The calls outside of autocast whose results have reached a scaled loss.
        visited: The functions that have been executed.
    """

    variables: Variables
    graph: CallGraph
    sinks: set[str]
    execute: Callable[[Frame], None]
    reaching: set[ast.Call] = field(default_factory=set)
    visited: set[Function] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Index the classes of the program."""
        tree = self.variables.program.source.tree
        self._classes = {each.name: each for each in inner(tree) if isinstance(each, ast.ClassDef)}
        self._instances = {
            last_name(target): self._classes[path]
            for each in inner(tree)
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)
            if (path := dotted(each.value.func)) in self._classes
            for target in each.targets
        }
        self._stack: list[Function] = []
        self.forget()

    def forget(self) -> None:
        """Forget which functions have been executed, and their results."""
        self._results: dict[object, tuple[Value, Values, Values]] = {}
        self.visited.clear()

    def value(self, node: ast.AST | None, frame: Frame) -> Value:
        """Return the value of an expression, or of the expressions in another node together."""
        match node:
            case None | ast.Constant() | ast.JoinedStr():
                value = NOTHING
            case ast.Call():
                value = self._call(node, frame)
            case ast.Name() | ast.Attribute():
                value = self._variable(node, frame)
            case ast.NamedExpr(target=target, value=given):
                value = self.value(given, frame)
                self.variables.bind(target, value, frame)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.value(test, frame)
                value = self.value(body, frame) | self.value(orelse, frame)
            case ast.Lambda():
                value = self._lambda(node, frame)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                value = self._comprehension(node, frame)
            case _:
                parts = ast.iter_child_nodes(node)
                value = NOTHING.union(*(self.value(each, frame) for each in parts))
        if isinstance(node, ast.Yield | ast.YieldFrom):
            frame.returned |= value
        return value

    def called(self, node: ast.Call) -> list[Function]:
        """Return the functions of the program that a call may execute, if their code is known.

        For a class, this is `__init__`; for an object, `__call__`.
        """
        class_ = self._class(node)
        if class_ is not None:
            return _methods(class_, "__init__")
        of_super = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call)
        known = [] if of_super else self.graph.called(node)
        if not known and last_name(node.func) in self._instances:
            known = _methods(self._instances[last_name(node.func)], "__call__")
        return [each for each in known if not _is_abstract(each)]

    def _variable(self, node: ast.Name | ast.Attribute, frame: Frame) -> Value:
        path = dotted(node)
        if path in self.variables.program.models:
            return MODEL
        if path is not None and path == key_of(node):
            return self.variables.read(path, frame)
        assert isinstance(node, ast.Attribute)
        return NOTHING if node.attr in PROPERTIES else self.value(node.value, frame)

    def _lambda(self, node: ast.Lambda, frame: Frame) -> Value:
        """Return `MODEL` for a function that runs a model: a call of it counts as one of both."""
        outer = dict(frame.values or {})
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.variables.write(each.arg, NOTHING, frame)
        value = self.value(node.body, frame)
        frame.values = outer
        return MODEL if value else NOTHING

    def _comprehension(self, node: _Comprehension, frame: Frame) -> Value:
        outer, repeated = dict(frame.values or {}), frame.repeated
        frame.repeated = True
        for part in node.generators:
            self.variables.bind(part.target, self.value(part.iter, frame), frame)
            for test in part.ifs:
                self.value(test, frame)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        value = NOTHING.union(*(self.value(each, frame) for each in parts))
        frame.values, frame.repeated = outer, repeated
        return value

    def _call(self, node: ast.Call, frame: Frame) -> Value:
        arguments = [*node.args, *(each.value for each in node.keywords)]
        values = {each: self.value(each, frame) for each in arguments}
        given = NOTHING.union(*values.values())
        if dotted(node.func) in self.sinks and arguments:
            self.reaching |= {each for each in values[arguments[0]] if isinstance(each, ast.Call)}
            return NOTHING
        owner = self.value(node.func, frame)
        functions = self.called(node)
        if functions and Kind.OUTPUT not in owner:
            results = [self._enter(each, node, values, frame) for each in functions]
            if self._class(node) is None:
                return NOTHING.union(*results)
        if self._constructs_module(node):
            return given | MODEL
        if isinstance(node.func, ast.Attribute) and node.func.attr in FILLING:
            self.variables.add(node.func.value, given, frame)
        value = moved(node, owner, given)
        return self._computed(node, owner, given, frame) if value is None else value

    def _computed(self, node: ast.Call, owner: Value, given: Value, frame: Frame) -> Value:
        """Return the value of a call that runs a model, or computes with its outputs.

        A call that only passes a model to a function of another file may also prepare the model.
        It counts only in a loop.
        """
        method = isinstance(node.func, ast.Attribute) and dotted(node.func.value) != "self"
        if not method:  # an object that is called is no tensor
            owner = frozenset(each for each in owner if isinstance(each, Kind))
        kinds = {each for each in owner | given if isinstance(each, Kind)}
        counts = not frame.covered and bool(owner or Kind.OUTPUT in kinds or frame.repeated)
        return ((owner | given) - kinds) | OUTPUT | ({node} if counts else NOTHING)

    def _enter(
        self, function: Function, call: ast.Call, values: dict[ast.expr, Value], frame: Frame
    ) -> Value:
        """Execute a function of the program with the values of a call, and return its result."""
        if function in self._stack or len(self._stack) == _DEEPEST:
            return NOTHING.union(*values.values())
        own = isinstance(call.func, ast.Attribute) and dotted(call.func.value) == "self"
        nested = self.variables.program.source.function(function) is not None
        passed = dict(self.graph.passed(call, function))
        rest = NOTHING.union(*(values[each] for each in values if each not in passed.values()))
        known = {key: value for key, value in (frame.values or {}).items() if nested or own}
        start = {key: value for key, value in known.items() if nested or key.startswith("self.")}
        start |= dict.fromkeys(parameters(function), rest)
        start |= {name: values[given] for name, given in passed.items()}
        under = [autocasts(each, otherwise=frame.covered) for each in function.decorator_list]
        covered = under[0] if under else frame.covered
        key = (function, covered, frame.repeated, frozenset(start.items()))
        if key not in self._results:
            inside = Frame(function, start, covered, frame.repeated)
            self._results[key] = self.executed(inside)
        returned, attributes, added = self._results[key]
        if own and frame.values is not None:
            frame.values |= attributes
        for name, given in passed.items():
            self.variables.add(given, added.get(name, NOTHING), frame)
        return returned

    def executed(self, frame: Frame) -> tuple[Value, Values, Values]:
        """Execute the function of a frame.

        Returns:
            Its result, the values of the attributes of `self` after it, and what it added to its
            parameters.
        """
        assert frame.function is not None
        self.visited.add(frame.function)
        self._stack.append(frame.function)
        self.execute(frame)
        self._stack.pop()
        last = frame.values or {}
        attributes = {key: value for key, value in last.items() if key.startswith("self.")}
        return frame.returned, attributes, frame.added

    def _class(self, node: ast.Call) -> ast.ClassDef | None:
        return self._classes.get(dotted(node.func) or "")

    def _constructs_module(self, node: ast.Call) -> bool:
        """Tell whether a call creates a module of torch or of the program."""
        class_ = self._class(node)
        seen: set[ast.ClassDef] = set()
        while class_ is not None and class_ not in seen:
            seen.add(class_)
            bases = [dotted(each) or "" for each in class_.bases]
            if any(each.rpartition(".")[2] == "Module" for each in bases):
                return True
            class_ = next((self._classes[each] for each in bases if each in self._classes), None)
        return constructs_module(node)


def _methods(class_: ast.ClassDef, name: str) -> list[Function]:
    return [each for each in class_.body if isinstance(each, Function) and each.name == name]


def _is_abstract(function: Function) -> bool:
    """Tell whether a function has no code: a subclass in another file replaces it."""
    return all(
        isinstance(each, ast.Pass | ast.Raise)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        for each in function.body
    )
