"""The values of expressions, and the calls outside of autocast that these come from."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import dotted, parameters
from halfstep.migrate.verification.values import (
    FILLING,
    MODEL,
    NOTHING,
    OUTPUT,
    PROPERTIES,
    Kind,
    Unknown,
    Value,
    constructs_module,
    counted,
    moved,
)
from halfstep.migrate.verification.variables import Frame, Values, Variables, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.migrate.program.source import Function
    from halfstep.migrate.verification.callables import Callables

_DEEPEST = 10
"""The largest number of nested calls that are followed."""
_Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


@dataclass
class Expressions:
    """Evaluates expressions abstractly.

    Args:
        variables: The variables of the program.
        callables: Its functions and classes.
        sinks: The functions whose first argument is a loss to scale, such as "engine.backward".
        execute: Executes the body of the function of a frame.

    Attributes:
        reaching: The calls outside of autocast whose results have reached a scaled loss.
        visited: The functions that have been executed.
    """

    variables: Variables
    callables: Callables
    sinks: set[str]
    execute: Callable[[Frame], None]
    reaching: set[ast.Call] = field(default_factory=set)
    visited: set[Function] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin outside of all functions."""
        self._stack: list[Function] = []
        self.forget()

    def forget(self) -> None:
        """Forget which functions have been executed, and their results."""
        self._results: dict[object, tuple[set[tuple[Value, ...]], Values, Values]] = {}
        self.visited.clear()

    def value(self, node: ast.AST | None, frame: Frame) -> Value:
        """Return the value of an expression, or of the expressions in another node together."""
        match node:
            case None | ast.Constant() | ast.JoinedStr():
                value = NOTHING
            case ast.Call():
                value = NOTHING.union(*(one for each in self._call(node, frame) for one in each))
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
            frame.returned.add((value,))
        return value

    def results(self, node: ast.expr | None, frame: Frame) -> set[tuple[Value, ...]]:
        """Return the values that an expression may have: those of a tuple, or one value."""
        if isinstance(node, ast.Tuple | ast.List):
            if not any(isinstance(each, ast.Starred) for each in node.elts):
                return {tuple(self.value(each, frame) for each in node.elts)}
        elif isinstance(node, ast.Call):
            return self._call(node, frame) or {(NOTHING,)}
        return {(self.value(node, frame),)}

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
        return NOTHING if all(isinstance(each, Unknown) for each in value) else MODEL

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

    def _call(self, node: ast.Call, frame: Frame) -> set[tuple[Value, ...]]:
        arguments = [*node.args, *(each.value for each in node.keywords)]
        values = {each: self.value(each, frame) for each in arguments}
        given = NOTHING.union(*values.values())
        if dotted(node.func) in self.sinks and arguments:
            self.reaching |= counted(values[arguments[0]])
            return {(NOTHING,)}
        owner = self.value(node.func, frame)
        functions, class_ = self.callables.functions(node), self.callables.class_of(node)
        if functions and Kind.OUTPUT not in owner:
            results = [self._enter(each, node, values, frame) for each in functions]
            if class_ is None:
                return set().union(*results)
        if class_ is not None or constructs_module(node):
            module = class_ is None or self.callables.is_module(class_)
            return {(given | MODEL if module else given,)}
        if isinstance(node.func, ast.Attribute) and node.func.attr in FILLING:
            self.variables.add(node.func.value, given, frame)
        value = moved(node, owner, given)
        return {(self._computed(node, owner, given, frame) if value is None else value,)}

    def _computed(self, node: ast.Call, owner: Value, given: Value, frame: Frame) -> Value:
        """Return the value of a call that runs a model, or computes with its outputs.

        A call that only passes a model to a function of another file may also prepare the model.
        It counts only in a loop. Without a model, only autocast tells that a call computes.
        """
        if frame.constant:
            return NOTHING
        method = isinstance(node.func, ast.Attribute) and dotted(node.func.value) != "self"
        if not method:  # an object that is called is no tensor
            owner = frozenset(each for each in owner if isinstance(each, Kind))
        kinds = (owner | given) & {Kind.MODEL, Kind.OUTPUT}
        calls = (owner | given) - kinds
        if frame.covered:
            return calls | OUTPUT
        if not kinds:
            return calls | {Unknown(node)}
        counts = owner & kinds or Kind.OUTPUT in kinds or frame.repeated
        return calls | OUTPUT | {node} if counts else calls

    def _enter(
        self, function: Function, call: ast.Call, values: dict[ast.expr, Value], frame: Frame
    ) -> set[tuple[Value, ...]]:
        """Execute a function of the program with the values of a call, and return its results."""
        if function in self._stack or len(self._stack) == _DEEPEST:
            return {(NOTHING.union(*values.values()),)}
        own = isinstance(call.func, ast.Attribute) and dotted(call.func.value) == "self"
        nested = self.variables.program.source.function(function) is not None
        passed = dict(self.callables.graph.passed(call, function))
        rest = NOTHING.union(*(values[each] for each in values if each not in passed.values()))
        known = {key: value for key, value in (frame.values or {}).items() if nested or own}
        start = {key: value for key, value in known.items() if nested or key.startswith("self.")}
        start |= dict.fromkeys(parameters(function), rest)
        start |= {name: values[given] for name, given in passed.items()}
        key = (function, frame.covered, frame.constant, frame.repeated, frozenset(start.items()))
        if key not in self._results:
            inside = Frame(function, start, frame.covered, frame.constant, frame.repeated)
            self._results[key] = self.executed(inside)
        returned, changed, added = self._results[key]
        if frame.values is not None:
            frame.values |= {name: changed[name] for name in changed if own or "." not in name}
        for name, given in passed.items():
            self.variables.add(given, added.get(name, NOTHING), frame)
        return returned

    def executed(self, frame: Frame) -> tuple[set[tuple[Value, ...]], Values, Values]:
        """Execute the function of a frame.

        Returns:
            Its results, the values of the attributes of `self` and of outer variables after it, and
            what it added to its parameters.
        """
        assert frame.function is not None
        self.visited.add(frame.function)
        self._stack.append(frame.function)
        self.execute(frame)
        self._stack.pop()
        last = self.variables.joined([frame.values, *frame.ends], frame) or {}
        kept = {key for key in last if key.startswith("self.") or key in frame.outer}
        return frame.returned, {key: last[key] for key in kept}, frame.added
