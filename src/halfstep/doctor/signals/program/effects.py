"""Finds in the source of a program what has no effect: values that nothing reads, and statements.

A value counts only if its expression does nothing else than to compute it: functions of torch, and
functions of the same file that consist of them.
"""

from __future__ import annotations

import ast
import linecache
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.record.blocks import parsed
from halfstep.doctor.record.scope import inside
from halfstep.doctor.signals.program.liveness import (
    entries_beside,
    functions_among,
    lines_binding,
    parameters,
    reads,
    unpackings,
    unread,
)
from halfstep.doctor.tape.listener import writes
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.doctor.signals.program.liveness import Scope

VALUE, FIELD, PARAMETER, DROPPED, UNCALLED = "value", "field", "parameter", "dropped", "uncalled"
_BUILTINS = frozenset(
    {
        *("abs", "bool", "dict", "enumerate", "float", "int", "isinstance", "len", "list", "max"),
        *("min", "range", "reversed", "round", "set", "slice", "sorted", "sum", "tuple", "zip"),
    }
)
_MODULES = frozenset({"torch", "math", "numpy"})
_ACTS = frozenset(
    {
        *("backward", "compile", "cpu", "item", "load", "manual_seed", "no_grad", "numpy"),
        *("register_hook", "register_post_accumulate_grad_hook", "retain_grad", "save", "seed"),
        *("set_num_threads", "tolist"),
    }
)
_METHODS = frozenset({"items", "keys", "values", "get", "copy", "named_parameters", "parameters"})
_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow"}
_CALLED = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_COLLECTS = frozenset({"add"})  # of a set
# In names of functions that return numbers about their arguments, which they do not change.
_MEASURES = ("loss", "entropy", "kl_div", "similarity", "distance")


@dataclass(frozen=True, slots=True)
class Idle:
    """A value that nothing reads, or a statement without an effect.

    Attributes:
        kind: "value" for a name that is assigned a value; "field" for one of several names that a
            statement unpacks; "parameter" of a function; "dropped" for a statement whose result is
            dropped; "uncalled" for a method that a statement names and does not call.
        name: The name; for "dropped", the name of the operator.
        lines: The first and the last line of the statement. For a name that keeps the value of
            another one, and for a method, the lines of the function or file: no operator runs in
            the line.
        line: The first line of the statement.
        function: Name of the function around it; "<module>" for none.
        first: The line where the function begins; 0 for none.
        fellows: For a field or a parameter, the names beside it that are read.
        given: For a dropped result, the variable to which it can be assigned.
        is_overwritten: Whether the name gets another value before anything could read it.
        of: For a field that is an entry of a dict, the name of the dict; `fellows` are keys then.
    """

    kind: str
    name: str
    lines: tuple[int, int]
    line: int
    function: str
    first: int
    fellows: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    is_overwritten: bool = False
    of: str = ""


@lru_cache(maxsize=64)
def idle_in(file: str) -> tuple[Idle, ...]:
    """Return what has no effect in a file."""
    tree = parsed("".join(linecache.getlines(file)))
    if tree is None:
        return ()
    return tuple(_File(tree).found())


class _File:
    def __init__(self, tree: ast.Module) -> None:
        self._tree, nodes = tree, [*ast.walk(tree)]
        self._scopes = functions_among(nodes)
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for each in self._scopes:
            self._functions.setdefault(each.name, []).append(each)
        self._modules: dict[str, str] = {}  # names of modules, and of functions in them
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    whole = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._modules[alias.asname or whole] = whole
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        called = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
        self._passed = {  # functions that are given to others, which expect some parameters
            _name(each)
            for each in nodes
            if isinstance(each, ast.Name | ast.Attribute) and id(each) not in called
        }
        self._pure: dict[int, bool] = {}
        self._tried = {
            id(inner)
            for each in nodes
            if isinstance(each, ast.Try)
            for statement in each.body
            for inner in ast.walk(statement)
        }

    def found(self) -> Iterator[Idle]:
        """Yield what has no effect."""
        for scope in (self._tree, *self._scopes):
            place = ("<module>", 0)
            if not isinstance(scope, ast.Module):
                place = scope.name, _first_line(scope)
            for statement, names in unread(scope).values():
                yield from self._unread(scope, statement, names, place)
            for node in inside(scope):
                if isinstance(node, ast.Expr) and id(node) not in self._tried:
                    yield from self._statement(scope, node, place)
            if not isinstance(scope, ast.Module):
                yield from self._parameters(scope)

    def _unread(
        self, scope: Scope, statement: ast.stmt, names: set[str], place: tuple[str, int]
    ) -> Iterator[Idle]:
        lines = statement.lineno, statement.end_lineno or statement.lineno
        if isinstance(statement, ast.For):
            lines = statement.lineno, statement.iter.end_lineno or statement.lineno
            target: ast.expr = statement.target
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        elif isinstance(statement, ast.AnnAssign):
            target = statement.target
        else:
            return
        value = None if isinstance(statement, ast.For) else statement.value
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [*zip(target.elts, value.elts, strict=False)]
        for one, its in pairs:
            if isinstance(one, ast.Name) and one.id in names and its is not None:
                yield from self._value(scope, one.id, its, lines, place)
            elif its is None or not self._is_of_torch(its):
                for together in unpackings(one):
                    yield from self._fields(statement, together, names, lines, place)

    def _value(
        self,
        scope: Scope,
        name: str,
        value: ast.expr,
        lines: tuple[int, int],
        place: tuple[str, int],
    ) -> Iterator[Idle]:
        of, fellows = entries_beside(self._tree, scope, value)
        if fellows:
            yield Idle(FIELD, name, lines, lines[0], *place, fellows, of=of)
            return
        keeps = isinstance(value, ast.Name) and _is_changed_after(scope, value.id, lines[1])
        if keeps or (not isinstance(value, ast.Name | ast.Constant) and self._is_pure(value)):
            ran = _lines_of(scope) if keeps else lines
            again = _is_used_again(scope, name, lines[1])
            yield Idle(VALUE, name, ran, lines[0], *place, is_overwritten=again)

    def _fields(
        self,
        statement: ast.stmt,
        together: tuple[str, ...],
        names: set[str],
        lines: tuple[int, int],
        place: tuple[str, int],
    ) -> Iterator[Idle]:
        fellows = tuple(each for each in together if each and each not in names and each[0] != "_")
        for at, name in enumerate(together):
            if name in names and fellows and not self._is_read_elsewhere(statement, together, at):
                yield Idle(FIELD, name, lines, lines[0], *place, fellows)

    def _is_read_elsewhere(self, but: ast.stmt, together: tuple[str, ...], at: int) -> bool:
        """Return whether another statement unpacks the same fields, and this one is read.

        So it is if an earlier statement calls the same function: the data of an evaluation come
        after those of the training, and an evaluation may need less of them.
        """
        for scope in (self._tree, *self._scopes):
            dead = unread(scope)
            for node in inside(scope):
                if node is but or not isinstance(node, ast.For | ast.Assign | ast.comprehension):
                    continue
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                for other in unpackings(target):
                    names = dead[id(node)][1] if id(node) in dead else set()
                    if len(other) != len(together) or other[at] in names:
                        continue
                    if other[at] == together[at] or _calls_again(but, node):
                        return True
        return False

    def _statement(self, scope: Scope, node: ast.Expr, place: tuple[str, int]) -> Iterator[Idle]:
        value, lines = node.value, (node.lineno, node.end_lineno or node.lineno)
        if isinstance(value, ast.BinOp) and type(value.op) in _OPERATORS:
            if self._is_pure(value):
                name = _OPERATORS[type(value.op)]
                yield Idle(DROPPED, name, lines, lines[0], *place, given=_target(scope, value.left))
        elif isinstance(value, ast.Attribute):
            if any(callable(getattr(kind, value.attr, None)) for kind in _CALLED):
                yield Idle(UNCALLED, ast.unparse(value), _lines_of(scope), lines[0], *place)
        elif isinstance(value, ast.Call) and self._is_pure(value):
            function = value.func
            name = function.attr if isinstance(function, ast.Attribute) else ""
            module = self._module(function)
            is_function = module.startswith("torch.nn.functional.") and not any(
                each in module for each in _MEASURES
            )
            owner = function.value if isinstance(function, ast.Attribute) else None
            is_module = isinstance(owner, ast.Name) and owner.id == "self"
            is_own = not module and owner is not None and not is_module and _has_twin(name)
            added = value.args[0] if value.args else None
            collects = name in _COLLECTS and isinstance(added, ast.BinOp | ast.Call)
            options = {each.arg for each in value.keywords}
            if options & {"out", "inplace"} or collects:
                return
            if is_function or is_own or (module.count(".") == 1 and _has_twin(name)):
                of = value.args[0] if module and value.args else function
                if isinstance(of, ast.Attribute):
                    of = of.value
                target = _target(scope, of)
                yield Idle(
                    DROPPED,
                    module.rpartition(".")[2] or name,
                    lines,
                    lines[0],
                    *place,
                    given=target,
                )

    def _parameters(self, scope: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Idle]:
        names = parameters(scope)
        used = set().union(*map(reads, scope.body))
        body = [each for each in scope.body if not _is_text(each)]
        is_stub = all(isinstance(each, ast.Pass | ast.Raise) for each in body)
        if is_stub or used & {"locals", "vars"} or names[:1] == ["ctx"]:
            return
        if scope.name in self._passed:
            return
        fellows = tuple(each for each in names if each in used and each not in {"self", "cls"})
        others = [each for each in self._functions[scope.name] if each is not scope]
        # One of several functions with the same name may not need what another one does.
        taken = set().union(*(parameters(each) for each in others))
        lines = scope.lineno, scope.body[0].lineno - 1
        for name in names:
            if name in used | taken | {"self", "cls"} or name[0] == "_" or not fellows:
                continue
            yield Idle(PARAMETER, name, lines, lines[0], scope.name, _first_line(scope), fellows)

    # ------------------------------------------------------------ expressions without effects

    def _is_pure(self, node: ast.AST) -> bool:
        for each in ast.walk(node):
            if isinstance(each, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
                return False
            if isinstance(each, ast.Call) and not self._calls_nothing_else(each):
                return False
        return True

    def _is_of_torch(self, node: ast.expr) -> bool:
        """Return whether an expression is a call of torch, or of a layer, that returns several."""
        if not isinstance(node, ast.Call):
            return isinstance(node, ast.Attribute)  # a shape
        if not self._calls_nothing_else(node):
            return False
        return bool(self._module(node.func)) or _name(node.func) not in self._functions

    def _calls_nothing_else(self, call: ast.Call) -> bool:
        """Return whether a call only computes its result, as far as the file shows it."""
        function = call.func
        if any(each.arg == "out" for each in call.keywords):
            return False
        if module := self._module(function):
            last = module.rpartition(".")[2]
            return module.partition(".")[0] in _MODULES and last not in _ACTS and not writes(last)
        if isinstance(function, ast.Call):  # nn.Softmax(dim=1)(x)
            return self._module(function.func).startswith("torch.nn.")
        name = _name(function)
        if name in self._functions:
            known = self._functions[name]
            return len(known) == 1 and self._is_function(known[0])
        return name in _BUILTINS if isinstance(function, ast.Name) else _is_plain(function)

    def _is_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Return whether a function does nothing else than to compute its result."""
        if id(function) not in self._pure:
            self._pure[id(function)] = False  # until it is known, as for a function that recurs
            self._pure[id(function)] = self._computes(function)
        return self._pure[id(function)]

    def _computes(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        given = parameters(function)
        for node in (each for statement in function.body for each in ast.walk(statement)):
            if isinstance(node, ast.Global | ast.Nonlocal | ast.Delete | ast.Yield | ast.Await):
                return False
            if isinstance(node, ast.Expr) and not _is_text(node):
                return False
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                return False
            if isinstance(node, ast.AugAssign):
                target = node.target
                if not isinstance(target, ast.Name) or target.id in given:
                    return False
            if isinstance(node, ast.Call) and not self._calls_nothing_else(node):
                is_context = self._module(node.func) in {"torch.no_grad", "torch.enable_grad"}
                if not is_context:
                    return False
        return True

    def _module(self, node: ast.expr) -> str:
        """Return the full name of a function of a module; "" for another one."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        known = self._modules.get(node.id) if isinstance(node, ast.Name) else None
        return ".".join((known, *parts)) if known else ""


def _name(function: ast.expr) -> str:
    """Return the last part of the name of a function; "" for another expression."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_plain(function: ast.expr) -> bool:
    """Return whether a method only computes its result: of a tensor, or a layer of a module."""
    if not isinstance(function, ast.Attribute):
        return False
    if isinstance(function.value, ast.Name) and function.value.id == "self":
        return True
    name = function.attr
    return name in _METHODS or (
        hasattr(torch.Tensor, name) and name not in _ACTS and not writes(name)
    )


def _calls_again(statement: ast.stmt, other: ast.AST) -> bool:
    """Return whether an assignment calls the function that an earlier one calls."""
    if not (isinstance(statement, ast.Assign) and isinstance(other, ast.Assign)):
        return False
    one, two = statement.value, other.value
    if not (isinstance(one, ast.Call) and isinstance(two, ast.Call)):
        return False
    return other.lineno < statement.lineno and ast.dump(one.func) == ast.dump(two.func)


def _target(scope: Scope, node: ast.expr) -> tuple[str, ...]:
    """Return the name of a variable that is no variable of a loop."""
    if not isinstance(node, ast.Name):
        return ()
    loops = (each for each in inside(scope) if isinstance(each, ast.For))
    bound = {
        each.id for loop in loops for each in ast.walk(loop.target) if isinstance(each, ast.Name)
    }
    return () if node.id in bound else (node.id,)


def _has_twin(name: str) -> bool:
    """Return whether a method of a tensor has a twin that works in place."""
    return hasattr(torch.Tensor, name) and hasattr(torch.Tensor, f"{name}_") and name != "bernoulli"


def _is_changed_after(scope: Scope, name: str, line: int) -> bool:
    """Return whether a name gets another value after a line."""
    return any(each > line for each in lines_binding(scope, name))


def _is_used_again(scope: Scope, name: str, line: int) -> bool:
    """Return whether a name gets another value after a line, which is then read."""
    bound = [each for each in lines_binding(scope, name) if each > line]
    return bool(bound) and any(
        isinstance(each, ast.Name) and each.id == name and each.lineno > min(bound)
        for each in inside(scope)
        if not isinstance(getattr(each, "ctx", None), ast.Store)
    )


def _lines_of(scope: Scope) -> tuple[int, int]:
    return scope.body[0].lineno, scope.body[-1].end_lineno or scope.body[-1].lineno


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])
