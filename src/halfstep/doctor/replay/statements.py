"""Runs changed statements of the loop in a replay, with the tensors that the statements had.

The tape has the calls of torch that a statement of the loop made, with their arguments, but not its
variables. So the expressions of the statement are matched with these calls, in the order in which
Python evaluates them. The arguments then show the value of each variable, and the changed
expression is computed from these values.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import sys
from dataclasses import field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from halfstep.doctor.replay.edits import edited
from halfstep.doctor.tape.tape import Slot
from halfstep.doctor.tensors.nesting import exchange
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import CodeType

    from halfstep.doctor.record.attempts import Edit
    from halfstep.doctor.tape.tape import Entry

_OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.USub: "neg",
}
_SAME = {"truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "mm": "matmul"}


@dataclass(slots=True)
class Changed:
    """One execution of a changed statement.

    Attributes:
        entries: Its calls, by identity, which are not run.
        last: Its last call, in place of which the changed expression is computed.
        code: The changed expression.
        values: The values of its variables, with the slots of the tape.
        names: The global names of the program.
    """

    entries: set[int]
    last: Entry
    code: CodeType
    values: dict[str, Any]
    names: dict[str, Any]

    def value(self, fill: Callable[[Any], Any]) -> Any:
        """Return the value of the changed expression.

        Args:
            fill: Returns the tensor of this replay for a slot of the tape.
        """
        known = {**self.names, **exchange(self.values, fill)}
        return eval(self.code, known)  # noqa: S307  # an expression of the program


@dataclass(slots=True)
class _Match:
    """The values of the expressions of a statement, as far as a call has them as arguments."""

    calls: list[Entry]
    globals: dict[str, Any]
    taken: list[Entry] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    computed: set[str] = field(default_factory=set)
    root: ast.expr | None = None

    def visit(self, node: ast.AST) -> None:
        """Match an expression and those in it, in the order of their evaluation."""
        for child in _parts(node):
            self.visit(child)
        expected, arguments = self._call_of(node)
        entry = self.calls[0] if self.calls else None
        if entry is None or not expected:
            return
        assert isinstance(node, ast.expr)
        name = getattr(entry.function, "__name__", "")
        if entry.kind == "module":
            if isinstance(node, ast.Call):
                self._take(node, {})
                self.values[ast.dump(node)] = Slot(entry.results[0])
        elif _plain(name) == _plain(expected):
            given = dict(zip(arguments, entry.args, strict=False))
            if name.startswith("__r") and len(arguments) == 2:
                given = dict(zip(reversed(arguments), entry.args, strict=False))
            keywords = node.keywords if isinstance(node, ast.Call) else []
            given |= {
                each.value: entry.kwargs[each.arg] for each in keywords if each.arg in entry.kwargs
            }
            self._take(node, given)

    def _call_of(self, node: ast.AST) -> tuple[str, list[ast.expr]]:
        """Return the name of the call that an expression is on the tape, and its arguments."""
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute):
                return getattr(node.func, "id", "call"), node.args
            owner = node.func.value
            while isinstance(owner, ast.Attribute):
                owner = owner.value
            is_function = isinstance(owner, ast.Name) and isinstance(
                self.globals.get(owner.id), ModuleType
            )
            return node.func.attr, [*([] if is_function else [node.func.value]), *node.args]
        if isinstance(node, ast.BinOp):
            return _OPERATORS.get(type(node.op), ""), [node.left, node.right]
        if isinstance(node, ast.UnaryOp):
            return _OPERATORS.get(type(node.op), ""), [node.operand]
        if isinstance(node, ast.Subscript):
            return "getitem", [node.value]
        return ("get", [node.value]) if isinstance(node, ast.Attribute) else ("", [])

    def _take(self, node: ast.expr, given: dict[ast.expr, Any]) -> None:
        entry = self.calls.pop(0)
        self.taken.append(entry)
        for each, value in given.items():
            if not isinstance(each, ast.Constant) and ast.dump(each) not in self.computed:
                self.values.setdefault(ast.dump(each), value)
        if entry.kind == "call":
            self.computed.add(ast.dump(node))
        self.root = node


def changed_statements(
    entries: Sequence[Entry], file: str, edits: Sequence[Edit], line: int
) -> list[Changed] | None:
    """Return the executions of a statement of the loop with a changed line.

    Args:
        entries: The calls on the tape.
        file: The file.
        edits: The changes of its lines, each by one line.
        line: The changed line.

    Returns:
        The executions in order; None if the statement cannot be computed from the tape.
    """
    text = "".join(linecache.getlines(file))
    old, new = (_expression(each, line) for each in (text, edited(file, edits)))
    if old is None or new is None:
        return None
    lines = range(old.lineno, (old.end_lineno or old.lineno) + 1)
    calls = [
        each
        for each in entries
        if each.kind in ("call", "module") and each.mark is not None
        if each.mark[0] == file and each.mark[1] in lines
    ]
    names, found = _globals_of(file), []
    while calls:
        match = _Match(calls, names)
        match.visit(old)
        taken = [each for each in match.taken if each.kind == "call"]
        if not taken or match.root is not old or len(taken[-1].results) != 1:
            return None
        values = _Names(match.values)
        expression = ast.fix_missing_locations(ast.Expression(values.visit(new)))
        known = names | values.given
        read = {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)}
        if read - known.keys() - vars(builtins).keys():
            return None
        code = compile(expression, file, "eval")
        found.append(Changed({*map(id, taken)}, taken[-1], code, values.given, names))
    return found


class _Names(ast.NodeTransformer):
    """Replaces expressions with known values by names.

    Attributes:
        given: The values, by name.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self.given: dict[str, Any] = {}

    def visit(self, node: ast.AST) -> Any:
        key = ast.dump(node) if isinstance(node, ast.expr) else ""
        if key not in self._values:
            return self.generic_visit(node)
        name = f"given_{[*self._values].index(key)}"
        self.given[name] = self._values[key]
        return ast.Name(name, ast.Load())


def _expression(text: str, line: int) -> ast.expr | None:
    """Return the expression that a line computes: of a statement, or of the lambda in it."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return None
    around = [
        each
        for each in nodes
        if isinstance(each, ast.stmt | ast.Lambda)
        and each.lineno <= line <= (each.end_lineno or each.lineno)
    ]
    inner = around[-1] if around else None
    value = inner.body if isinstance(inner, ast.Lambda) else getattr(inner, "value", None)
    if isinstance(inner, ast.AugAssign) or not isinstance(value, ast.expr):
        return None
    method = value.func if isinstance(value, ast.Call) else None
    is_backward = isinstance(method, ast.Attribute) and method.attr == "backward"
    return method.value if isinstance(method, ast.Attribute) and is_backward else value


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Lambda):
        return
    yield from ast.iter_child_nodes(node)


def _plain(name: str) -> str:
    """Return the name of an operation without underscores and the mark of a reflected one."""
    plain = name.strip("_")
    if name.startswith("__r") and name.endswith("__"):
        plain = plain.removeprefix("r")
    return _SAME.get(plain, plain)


def _globals_of(file: str) -> dict[str, Any]:
    """Return the global names of the module of a file."""
    for module in [*sys.modules.values()]:
        if getattr(module, "__file__", None) == file:
            return dict(vars(module))
    return {}
