"""Follows the values of a program from statement to statement, to the losses that are scaled.

The program is executed abstractly, with `Value`s in place of values: both sides of an `if`, a loop
until its values no longer change, and each function with the values that its calls pass. So a call
also counts as under autocast if the function that contains it is called under autocast.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls, dotted, elements, last_name
from halfstep.migrate.program.source import Function, inner, suites
from halfstep.migrate.verification.callables import Callables
from halfstep.migrate.verification.expressions import Expressions
from halfstep.migrate.verification.values import NOTHING, autocasts
from halfstep.migrate.verification.variables import Frame, Variables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.migrate.program.program import Program
    from halfstep.migrate.verification.values import Value
    from halfstep.migrate.verification.variables import Values


class Flow:
    """The abstract execution of a program.

    Args:
        program: The program; `program.models` are the expressions that refer to models.
        scaler: The expression that refers to the engine or scaler.

    Attributes:
        expressions: Evaluates the expressions, and collects the calls that reach a scaled loss.
    """

    def __init__(self, program: Program, scaler: str) -> None:
        self._source = program.source
        self._variables = Variables(program, {scaler})
        self._callables = Callables(program)
        sinks = {f"{scaler}.backward", f"{scaler}.scale"}
        self.expressions = Expressions(self._variables, self._callables, sinks, self._execute)
        self._value = self.expressions.value
        self._run()

    def _run(self) -> None:
        """Execute the module, and then each function that the module does not execute."""
        functions = [each for each in inner(self._source.tree) if isinstance(each, Function)]
        called = {
            function
            for call in calls(self._source.tree)
            for function in self._callables.functions(call)
            if function not in self._source.above(call)
        }
        functions.sort(key=lambda each: each in called)
        before: object = None
        while before != self._variables.shared:  # an attribute may be read in code above its writer
            before = dict(self._variables.shared)
            self.expressions.forget()
            for file in self._source.files:
                self._block(file.module.body, Frame(None, {}))
            for function in functions:
                if function not in self.expressions.visited:
                    repeated = self._is_step(function)
                    self.expressions.executed(Frame(function, {}, repeated=repeated))

    def _is_step(self, function: Function) -> bool:
        """Tell whether a function scales a loss outside of its loops: code elsewhere repeats it."""
        return any(
            dotted(call.func) in self.expressions.sinks and self._source.loop(call) is None
            for call in calls(function)
        )

    def _execute(self, frame: Frame) -> None:
        assert frame.function is not None
        for each in frame.function.decorator_list:
            self._around(each, frame)
        self._block(frame.function.body, frame)

    @staticmethod
    def _around(node: ast.expr, frame: Frame) -> None:
        """Record what a context manager or decorator changes for the code inside."""
        frame.covered = autocasts(node, otherwise=frame.covered)
        frame.constant |= last_name(getattr(node, "func", node)) in {"no_grad", "inference_mode"}

    def _block(self, body: Iterable[ast.stmt], frame: Frame) -> None:
        for statement in body:
            if frame.values is not None:
                self._statement(statement, frame)

    def _statement(self, node: ast.stmt, frame: Frame) -> None:
        if suites(node):
            self._compound(node, frame)
            return
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, frame)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, frame)
            case ast.AugAssign(target=target, value=value):
                both = self._value(target, frame) | self._value(value, frame)
                self._variables.bind(target, both, frame)
            case ast.Expr() | ast.Assert():
                self._value(node, frame)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                frame.outer.update(names)
            case ast.Return() | ast.Break() | ast.Continue() | ast.Raise():
                self._leave(node, frame)

    def _leave(self, node: ast.Return | ast.Break | ast.Continue | ast.Raise, frame: Frame) -> None:
        """Leave the function or the current turn of a loop."""
        if isinstance(node, ast.Return):
            frame.returned |= self.expressions.results(node.value, frame)
            frame.ends.append(frame.values)
        elif isinstance(node, ast.Break | ast.Continue):
            frame.jumps.append(frame.values)
        frame.values = None

    def _compound(self, node: ast.stmt, frame: Frame) -> None:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                self._value(test, frame)
                self._either([([], body), ([], orelse)], NOTHING, frame)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._loop(node, frame)
            case ast.With() | ast.AsyncWith():
                self._with(node, frame)
            case ast.Try() | ast.TryStar():
                self._try(node, frame)
            case ast.Match():
                self._match(node, frame)

    def _assign(self, target: ast.expr, node: ast.expr, frame: Frame) -> None:
        """Assign an expression to a target; of a tuple, each entry to its own target."""
        results, targets = self.expressions.results(node, frame), elements(target)
        starred = any(isinstance(each, ast.Starred) for each in targets)
        if starred or any(len(each) != len(targets) for each in results):
            whole = NOTHING.union(*(value for each in results for value in each))
            results, targets = {(whole,)}, [target]
        for one, values in zip(targets, zip(*results, strict=True), strict=True):
            self._variables.bind(one, NOTHING.union(*values), frame)

    def _either(
        self, ways: Iterable[tuple[list[str], list[ast.stmt]]], value: Value, frame: Frame
    ) -> None:
        """Execute alternatives, each after it has assigned `value` to names; join their values."""
        start = frame.values
        ends: list[Values | None] = []
        for names, body in ways:
            frame.values = None if start is None else dict(start)
            for name in names:
                self._variables.write(name, value, frame)
            self._block(body, frame)
            ends.append(frame.values)
        frame.values = self._variables.joined(ends, frame)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, frame: Frame) -> None:
        outer, repeated = frame.jumps, frame.repeated
        entries = NOTHING if isinstance(node, ast.While) else self._value(node.iter, frame)
        before: Values | None = None
        while frame.values is not None and frame.values != before:
            before, frame.jumps, frame.repeated = dict(frame.values), [], True
            if isinstance(node, ast.While):
                self._value(node.test, frame)
            else:
                self._variables.bind(node.target, entries, frame)
            self._block(node.body, frame)
            frame.values = self._variables.joined([before, frame.values, *frame.jumps], frame)
        frame.jumps, frame.repeated = outer, repeated
        self._block(node.orelse, frame)

    def _with(self, node: ast.With | ast.AsyncWith, frame: Frame) -> None:
        outer = frame.covered, frame.constant
        for item in node.items:
            value = self._value(item.context_expr, frame)
            if item.optional_vars is not None:
                self._variables.bind(item.optional_vars, value, frame)
            self._around(item.context_expr, frame)
        self._block(node.body, frame)
        frame.covered, frame.constant = outer

    def _try(self, node: ast.Try | ast.TryStar, frame: Frame) -> None:
        before = dict(frame.values or {})
        self._block(node.body, frame)
        failed = self._variables.joined([before, frame.values], frame)
        self._block(node.orelse, frame)
        ends = [frame.values]
        for handler in node.handlers:
            frame.values = dict(failed or {})
            self._block(handler.body, frame)
            ends.append(frame.values)
        frame.values = self._variables.joined(ends, frame)
        self._block(node.finalbody, frame)

    def _match(self, node: ast.Match, frame: Frame) -> None:
        ways: list[tuple[list[str], list[ast.stmt]]] = [([], [])]
        for case in node.cases:
            parts = [each for each in inner(case.pattern) if hasattr(each, "name")]
            ways.append(([each.name for each in parts if each.name is not None], case.body))
        self._either(ways, self._value(node.subject, frame), frame)
