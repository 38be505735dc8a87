"""Reads what the code of the program's modules does with the mode, at the end of the watch.

A function that drops values has to be told the mode: its argument `training` has a default, which
is right in one mode only. A module whose `train()` is its own has to set its flag.
"""

from __future__ import annotations

import ast
import inspect
import re
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar

from torch import nn

from halfstep.doctor.record.blocks import begins, function_at
from halfstep.doctor.record.sites import Site, is_of_user, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODE = "training"
_MODULES = 64
_DROPS = re.compile("drop|stochastic")
_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_ATTENTION = "scaled_dot_product_attention"
ALWAYS, NEVER, FLAG = "always", "never", "flag"


@dataclass(frozen=True, slots=True)
class Ignored:
    """Code of a module that does not follow its mode.

    Attributes:
        how: "always" if it drops values in evaluation mode, too; "never" if it drops none in
            training mode; "flag" if its `train()` does not set its own flag.
        model: Number of the model that contains the module.
        kind: Class of the module.
        name: Name of the function that drops values, or "train".
        count: Number of such modules in the model.
        evaluated: Whether the model was evaluated.
        owner: The variable of the module in its methods: "self".
        mode: The variable of the mode in its `train()`.
        site: The first line of the statement that calls the function; for a flag, the first
            statement of `train()`.
        statement: Source text of this statement.
    """

    how: str
    model: int
    kind: str
    name: str
    count: int
    evaluated: bool
    owner: str
    mode: str
    site: Site | None
    statement: str


@dataclass(frozen=True, slots=True)
class ModeUse:
    """All such code."""

    signal: ClassVar[str] = "mode use"
    found: tuple[Ignored, ...] = ()


class ModeUses(Signal):
    """Reads the classes of all modules of the program."""

    def freeze(self) -> dict[str, Any]:
        """Return what was found."""
        found = []
        models = self.watched.registry.models
        for number, model in models.alive().items():
            notes = models.notes[number]
            groups: dict[type[nn.Module], list[nn.Module]] = {}
            for each in dict.fromkeys((*model.modules(), *notes.modules)):
                groups.setdefault(type(each), []).append(each)
            evaluated = notes.modes.is_tested or any(not each.training for each in model.modules())
            for kind, modules in groups.items():
                # The share of some of them may be 0, as the first stochastic depth usually has.
                each_found = filter(None, (list(_found_in(each)) for each in modules[:_MODULES]))
                found += [
                    Ignored(
                        how=how,
                        model=number,
                        kind=kind.__name__,
                        name=name,
                        count=len(modules),
                        evaluated=evaluated,
                        owner=owner,
                        mode=mode,
                        site=site(begins(mark) or mark),
                        statement=statement(mark),
                    )
                    for how, name, owner, mode, mark in next(each_found, [])
                ]
        return {ModeUse.signal: ModeUse(tuple(found))}


def _found_in(module: nn.Module) -> Iterator[tuple[str, str, str, str, Any]]:
    """Yield how a module ignores its mode, a function, the variables, and the line."""
    methods = {
        name: each
        for kind in reversed(type(module).__mro__)
        for name, its in vars(kind).items()
        # Another signal wraps methods that set the mode.
        if isinstance(its, FunctionType)
        and (each := inspect.unwrap(its))
        and is_of_user(each.__code__.co_filename)
    }
    forward, train = methods.get("forward"), methods.get("train")
    if forward is None:
        return
    run = {"forward", *forward.__code__.co_names} & methods.keys()
    # A forward() that asks for the flag may call the others in one mode only.
    for name in sorted(run - {"train", "eval"}) if not _asks(forward) else ():
        if not _asks(methods[name]):
            yield from _untold(module, methods[name])
    reads = any(_MODE in methods[name].__code__.co_names for name in run)
    if train is not None and reads and not _names(train) & {_MODE, "super", "__class__"}:
        body = statements_of(train)
        names = train.__code__.co_varnames
        if body and train.__code__.co_argcount > 1:
            mark = (train.__code__.co_filename, body[0].lineno, "train")
            yield FLAG, "train", names[0], names[1], mark


def _names(function: FunctionType) -> set[str]:
    """Return the names of variables and attributes in a function, and in those inside it."""
    waiting, names = [function.__code__], set()
    while waiting:
        code = waiting.pop()
        names |= {*code.co_names, *code.co_varnames, *code.co_freevars}
        waiting += [each for each in code.co_consts if inspect.iscode(each)]
    return names


def statements_of(function: FunctionType) -> list[ast.stmt]:
    """Return the statements of a function, without its docstring."""
    code = function.__code__
    tree = function_at(code.co_filename, code.co_firstlineno, code.co_name)
    if tree is None:
        return []
    return tree.body[ast.get_docstring(tree) is not None :]


def _asks(method: FunctionType) -> bool:
    """Return whether a method does one thing or another by its mode, or lets its own methods do so.

    One that only gives the mode to functions, as in `dropout(x, training=self.training)`, does not.
    """
    if _MODE not in _names(method):
        return False
    passed: set[ast.AST] = set()
    nodes = [node for each in statements_of(method) for node in ast.walk(each)]
    owner = method.__code__.co_varnames[0] if method.__code__.co_argcount else ""
    for node in nodes:
        if isinstance(node, ast.Call) and not _is_of(node.func, owner):
            passed |= set(map(_told, (*node.args, *(each.value for each in node.keywords))))
    return not nodes or any(_is_mode(node) and node not in passed for node in nodes)


def _told(argument: ast.expr) -> ast.expr:
    """Return what an argument asks for: the flag also of `share if self.training else 0.0`."""
    if isinstance(argument, ast.IfExp):
        calls = (*ast.walk(argument.body), *ast.walk(argument.orelse))
        return argument if any(isinstance(each, ast.Call) for each in calls) else argument.test
    return argument


def _is_mode(node: ast.AST) -> bool:
    name = getattr(node, "attr", getattr(node, "id", ""))
    return isinstance(node, ast.Attribute | ast.Name) and name == _MODE


def _is_of(node: ast.expr, owner: str) -> bool:
    """Return whether a function is a method of the module itself, and not of a layer of it."""
    owned = node.value if isinstance(node, ast.Attribute) else None
    return isinstance(owned, ast.Name) and owned.id == owner


def _untold(module: nn.Module, method: FunctionType) -> Iterator[tuple[str, str, str, str, Any]]:
    """Yield the calls in a method of functions that drop values and are not told the mode."""
    owner = method.__code__.co_varnames[0] if method.__code__.co_argcount else ""
    for node in (inner for each in statements_of(method) for inner in ast.walk(each)):
        if not isinstance(node, ast.Call) or any(each.arg is None for each in node.keywords):
            continue
        made = global_value(node.func.func, method) if isinstance(node.func, ast.Call) else None
        if isinstance(made, type) and issubclass(made, _LAYERS):  # It is new, in training mode.
            mark = method.__code__.co_filename, node.lineno, method.__name__
            yield ALWAYS, made.__name__, owner, "", mark
            continue
        function = global_value(node.func, method)
        name = getattr(function, "__name__", "")
        if any(isinstance(each, ast.Starred) for each in node.args):
            continue
        how = ""
        if name == _ATTENTION:
            shares = [each.value for each in node.keywords if each.arg == "dropout_p"]
            how = ALWAYS if any(_is_share(_value(each, module, method)) for each in shares) else ""
        elif isinstance(function, FunctionType) and _DROPS.search(name):
            how = _by_default(function, node, module, method)
        if how:
            yield how, name, owner, "", (method.__code__.co_filename, node.lineno, method.__name__)


def _by_default(
    function: FunctionType, call: ast.Call, module: nn.Module, method: FunctionType
) -> str:
    """Return how a call that leaves out the argument `training` ignores the mode; "" if not."""
    parameters = inspect.signature(function).parameters
    default = parameters[_MODE].default if _MODE in parameters else None
    given = dict(zip(parameters, call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg}
    if not isinstance(default, bool) or _MODE in given:
        return ""
    defaults = [
        each.default for name, each in parameters.items() if name not in given and name != _MODE
    ]
    values = [*(_value(each, module, method) for each in given.values()), *defaults]
    return (ALWAYS if default else NEVER) if any(map(_is_share, values)) else ""


def _value(node: ast.expr, module: nn.Module, method: FunctionType) -> Any:
    """Return what an expression means if it is a number, or one in attributes and mappings."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        is_owner = node.id == next(iter(method.__code__.co_varnames), "")
        return module if is_owner else method.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, module, method)
        kinds = type(owner).__mro__ if not isinstance(owner, type) else owner.__mro__
        known = [getattr(owner, "__dict__", {}), *(vars(each) for each in kinds)]
        return next((each[node.attr] for each in known if node.attr in each), None)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = _value(node.value, module, method)
        return owner.get(node.slice.value) if type(owner) is dict else None
    return None


def _is_share(value: Any) -> bool:
    return isinstance(value, float) and 0 < value < 1


def global_value(node: ast.expr, method: FunctionType) -> Any:
    """Return the function that a name or an attribute of a module of Python means."""
    if isinstance(node, ast.Name):
        return method.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = global_value(node.value, method)
        return getattr(owner, node.attr, None) if inspect.ismodule(owner) else None
    return None
