"""What the names in a program refer to: which of them are Apex's, however they were imported."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from halfstep.migrate.program.source import Function, inner, suites

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

STARRED = {
    "apex": ("amp", "fp16_utils", "normalization", "optimizers", "parallel"),
    "apex.amp": (
        *("initialize", "scale_loss", "master_params", "state_dict", "load_state_dict"),
        *("disable_casts", "init", "half_function", "float_function", "promote_function"),
        *("register_half_function", "register_float_function", "register_promote_function"),
    ),
    "apex.fp16_utils": (
        *("BN_convert_float", "FP16Model", "FP16_Optimizer", "LossScaler", "DynamicLossScaler"),
        *("convert_module", "convert_network", "network_to_half", "tofp16", "prep_param_lists"),
        *("model_grads_to_master_grads", "master_params_to_model_params"),
        *("clip_grad_norm", "to_python_float"),
    ),
    "apex.multi_tensor_apply": ("MultiTensorApply", "multi_tensor_applier"),
    "apex.normalization": (
        *("FusedLayerNorm", "FusedRMSNorm", "MixedFusedLayerNorm", "MixedFusedRMSNorm"),
    ),
    "apex.optimizers": (
        *("FusedAdagrad", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedSGD"),
        "FusedMixedPrecisionLamb",
    ),
    "apex.parallel": (
        *("DistributedDataParallel", "Reducer", "SyncBatchNorm", "convert_syncbn_model"),
        "create_syncbn_process_group",
    ),
}
"""The names that `from ... import *` binds, by package."""

_FIRST_NAMES = r"(halfstep\.)?apex(\.|$)|(amp_C|apex_C)(\.|$)"


def dotted(node: ast.AST | None) -> str | None:
    """Return `a.b.c` for a name or a chain of attributes, else None."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def last_name(node: ast.AST | None) -> str:
    """Return `c` for `a.b.c`, for `a[0].c` and for `f().c`; "" for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def calls(node: ast.AST) -> list[ast.Call]:
    """Return every call in a node, nested functions included."""
    return [each for each in inner(node) if isinstance(each, ast.Call)]


def used_names(node: ast.AST) -> set[str]:
    """Return every name that a node reads or binds; of `a.b` only `a`."""
    return {each.id for each in inner(node) if isinstance(each, ast.Name)}


def paths(node: ast.AST) -> set[str]:
    """Return the names in a node: `a` for `a.b.c`, but `self.x` for `self.x.y`."""
    found: set[str] = set()
    stack = [node]
    while stack:
        each = stack.pop()
        path = dotted(each)
        if path is not None:
            root, _, rest = path.partition(".")
            found.add(f"self.{rest.partition('.')[0]}" if root == "self" and rest else root)
            continue
        stack += ast.iter_child_nodes(each)
    return found


def targets(node: ast.AST) -> list[ast.expr]:
    """Return the targets that a node and the statements in it bind; tuples are flattened."""
    found: list[ast.expr] = []
    for each in inner(node):
        if isinstance(each, ast.Assign):
            found += each.targets
        elif isinstance(each, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
            found.append(each.target)
        elif isinstance(each, ast.withitem) and each.optional_vars is not None:
            found.append(each.optional_vars)
    flat: list[ast.expr] = []
    while found:
        target = found.pop()
        if isinstance(target, ast.Tuple | ast.List):
            found += target.elts
        else:
            flat.append(target.value if isinstance(target, ast.Starred) else target)
    return flat


def assigned(node: ast.AST) -> set[str]:
    """Return the names that a node binds or changes: `x` for `x.y` and `x[0]`, but `self.x`."""
    found: set[str] = set()
    for target in targets(node):
        owner: ast.AST = target
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        found |= paths(owner) if dotted(owner) else set()
    return found


def bound(node: ast.AST) -> set[str]:
    """Return the names and attribute chains (`a.b.c`) that a node binds, in full."""
    return {path for path in map(dotted, targets(node)) if path is not None}


def argument(call: ast.Call, name: str, place: int | None = None) -> ast.expr | None:
    """Return the argument of a call with this name or position (from 0), else None."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if place is not None and place < len(call.args):
        given = call.args[place]
        if not any(isinstance(each, ast.Starred) for each in call.args[: place + 1]):
            return given
    return None


def elements(expression: ast.expr) -> list[ast.expr]:
    """Return the entries of a list or tuple, or the expression itself."""
    return expression.elts if isinstance(expression, ast.List | ast.Tuple) else [expression]


def fresh(name: str, taken: Iterable[str]) -> str:
    """Return `name`, or a variant of it that is not in `taken`."""
    used = set(taken)
    return next(each for each in (name, f"amp_{name}", f"halfstep_{name}") if each not in used)


def all_names(tree: ast.AST) -> set[str]:
    """Return every name in a program: of variables, attributes, functions and imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name.partition(".")[0])
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found.update(names)
    return found


class Imports:
    """The imports of a program, at its top level and in functions, and the Apex names they bind.

    Attributes:
        bound: Maps each name that an import binds to a part of Apex to the full name in Apex.
        modules: All modules that the program imports.
        names: All names that its imports bind.
        others: The uses of a name in `bound` that do not refer to Apex, because a parameter or
            another import has the same name.
        by_name: Calls such as `importlib.import_module("apex")`.
    """

    def __init__(self, tree: ast.AST) -> None:
        self.bound: dict[str, str] = {}
        self.modules: set[str] = set()
        self.by_name: list[ast.Call] = []
        self.names = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.stmt)
            for name, _ in _imported(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _imports_by_name(node):
                self.by_name.append(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    self._import(alias)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self._import_from(node)
        self.others: set[ast.AST] = set()
        self._imported_otherwise(tree)
        self.others |= {
            each
            for function in ast.walk(tree)
            if isinstance(function, Function)
            for name in parameters(function) & self.bound.keys()
            for each in ast.walk(function)
            if isinstance(each, ast.Name) and each.id == name
        }

    def _imported_otherwise(self, tree: ast.AST) -> None:
        """Add the uses of a name to `others` if they follow an import of it from another package.

        An import decides about the statements after it in its suite.
        """
        for node in ast.walk(tree):  # outer suites first, so that the innermost import decides
            for suite in suites(node):
                for at, statement in enumerate(suite):
                    for name, apexs in _imported(statement):
                        uses = {
                            each
                            for behind in suite[at + 1 :]
                            for each in ast.walk(behind)
                            if isinstance(each, ast.Name) and each.id == name
                        }
                        if name in self.bound and not apexs:
                            self.others |= uses
                        elif name in self.bound:
                            self.others -= uses

    def _import(self, alias: ast.alias) -> None:
        self.modules.add(alias.name)
        if not is_apex(alias.name):
            return
        if alias.asname is not None:
            self.bound[alias.asname] = plain(alias.name)
        elif not alias.name.startswith("halfstep"):
            root = alias.name.partition(".")[0]
            self.bound[root] = root

    def _import_from(self, node: ast.ImportFrom) -> None:
        path = node.module or ""
        self.modules |= {path, *(f"{path}.{alias.name}" for alias in node.names)}
        for alias in node.names:
            if alias.name == "*":
                package = plain(path) if is_apex(path) else ""
                self.bound |= {name: f"{package}.{name}" for name in STARRED.get(package, ())}
            elif is_apex(f"{path}.{alias.name}"):
                self.bound[alias.asname or alias.name] = plain(f"{path}.{alias.name}")

    def qualified(self, node: ast.AST | None) -> str | None:
        """Return the full Apex name of a node, such as `apex.amp.scale_loss`; else None."""
        name = dotted(node)
        if name is None:
            return None
        root, _, rest = name.partition(".")
        if root not in self.bound or _root(node) in self.others:
            return None
        return f"{self.bound[root]}.{rest}" if rest else self.bound[root]


def parameters(function: Function) -> set[str]:
    """Return the names of a function's parameters."""
    arguments = function.args
    return {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _imported(statement: ast.stmt) -> Iterator[tuple[str, bool]]:
    """Yield each name that an import binds, with whether it refers to a part of Apex."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0], is_apex(alias.name)
    elif isinstance(statement, ast.ImportFrom):
        for alias in statement.names:
            path = f"{statement.module or ''}.{alias.name}"
            yield alias.asname or alias.name, not statement.level and is_apex(path)


def _imports_by_name(call: ast.Call) -> bool:
    given = call.args[0] if call.args else None
    named = isinstance(given, ast.Constant) and isinstance(given.value, str)
    importing = last_name(call.func) in {"import_module", "__import__"}
    return importing and named and is_apex(str(getattr(given, "value", "")))


def _root(node: ast.AST | None) -> ast.AST | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def is_apex(path: str) -> bool:
    """Tell whether a module or name belongs to Apex or to `halfstep.apex`."""
    return re.match(_FIRST_NAMES, path) is not None


def plain(path: str) -> str:
    """Return the name in Apex of a name in `halfstep.apex` or Apex."""
    return path.removeprefix("halfstep.")
