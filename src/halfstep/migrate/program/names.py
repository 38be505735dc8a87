"""What the names in a program refer to: which of them are Apex's, however they were imported."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from halfstep.migrate.program.layout import Layout
from halfstep.migrate.program.source import Function, inner, suites

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from halfstep.migrate.program.source import Source

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


class FileImports:
    """The imports of a file, at its top level and in functions, and the Apex names they bind.

    Attributes:
        bound: Maps each name that an import binds to a part of Apex to the full name in Apex.
        modules: All modules that the file imports.
        names: All names that its imports bind.
        others: The uses of a name in `bound` that do not refer to Apex, because a parameter or
            another import has the same name.
        by_name: Calls such as `importlib.import_module("apex")`.
        files: Maps each name or attribute chain that refers to another file to its path.
        defined: Maps each name that is imported from another file to the path of that file, and to
            the name there.
    """

    def __init__(self, tree: ast.Module, name: str = "", layout: Layout | None = None) -> None:
        self.tree = tree
        self.bound: dict[str, str] = {}
        self.modules: set[str] = set()
        self.by_name: list[ast.Call] = []
        self.names: set[str] = set()
        self.files: dict[str, str] = {}
        self.defined: dict[str, tuple[str, str]] = {}
        self.stars: list[str] = []
        self.others: set[ast.AST] = set()
        for node in inner(tree):
            if isinstance(node, ast.Call) and _imports_by_name(node):
                self.by_name.append(node)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                self.names |= {bound for bound, _ in _imported(node)}
                if isinstance(node, ast.Import):
                    for alias in node.names:
                        self._import(alias)
                elif not node.level:
                    self._import_from(node)
                if layout is not None:
                    self._link(name, node, layout)

    def _link(self, name: str, node: ast.Import | ast.ImportFrom, layout: Layout) -> None:
        """Record which names an import takes from other files of the program."""
        for alias, found in layout.imports(name, node):
            own = alias.asname or alias.name
            if found.name == name:
                continue
            if found.module:
                self.files[own] = found.name
            elif alias.name == "*":
                self.stars.append(found.name)
            else:
                self.defined[own] = (found.name, alias.name)

    def reexported(self) -> set[str]:
        """Return the names of parts of Apex that the file imports from other files."""
        return self.defined.keys() & self.bound.keys()

    def exclude(self) -> None:
        """Find the uses of names in `bound` that do not refer to Apex."""
        if not self.bound:
            return
        self._imported_otherwise(self.tree)
        self.others |= {
            each
            for function in inner(self.tree)
            if isinstance(function, Function)
            for name in parameters(function) & self.bound.keys()
            for each in inner(function)
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
                        if name not in self.bound:
                            continue
                        uses = {
                            each
                            for behind in suite[at + 1 :]
                            for each in inner(behind)
                            if isinstance(each, ast.Name) and each.id == name
                        }
                        if apexs or name in self.defined:
                            self.others -= uses
                        else:
                            self.others |= uses

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


def _no_alias(node: ast.AST) -> bool:
    del node
    return False


class Imports:
    """The imports of all files of a program.

    Args:
        source: The source of the program.

    Attributes:
        bound: The names that refer to a part of Apex in any file.
        modules: All modules that the program imports.
        names: All names that its imports bind.
        by_name: Calls such as `importlib.import_module("apex")`.
        aliases: The last names of expressions that refer to amp without an import: parameters and
            attributes of `self` that always get amp.
        is_alias: Tells whether an expression with such a name refers to amp.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.aliases: frozenset[str] = frozenset()
        self.is_alias: Callable[[ast.AST], bool] = _no_alias
        layout = Layout(each.name for each in source.files)
        self._files = {
            each.name: FileImports(each.module, each.name, layout) for each in source.files
        }
        every = [*self._files.values()]
        while sum(map(self._passed_on, every)):
            pass
        for each in every:
            each.exclude()
        self.bound = set().union(*(each.bound for each in every))
        self.modules = set().union(*(each.modules for each in every))
        self.names = set().union(*(each.names for each in every))
        self.by_name = [call for each in every for call in each.by_name]

    def _passed_on(self, file: FileImports) -> bool:
        """Add the Apex names that a file imports from other files; tell whether there are any."""
        new = {
            name: self._files[path].bound[own]
            for name, (path, own) in file.defined.items()
            if own in self._files[path].bound
        }
        for path in file.stars:
            new |= self._files[path].bound
        added = new.keys() - file.bound.keys()
        file.bound = new | file.bound
        return bool(added)

    def of(self, node: ast.AST) -> FileImports:
        """Return the imports of the file that contains a node."""
        return self._files[self._source.file(node).name]

    def qualified(self, node: ast.AST | None) -> str | None:
        """Return the full Apex name of a node, such as `apex.amp.scale_loss`; else None."""
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        name = self.of(node).qualified(node)
        if name is not None or not self.aliases:
            return name
        rest: list[str] = []
        owner: ast.AST = node
        while isinstance(owner, ast.Name | ast.Attribute):
            if last_name(owner) in self.aliases and self.is_alias(owner):
                return ".".join(["apex.amp", *rest[::-1]])
            if isinstance(owner, ast.Name):
                break
            rest.append(owner.attr)
            owner = owner.value
        return None

    def defined(self, path: str | None, node: ast.AST) -> tuple[str, str] | None:
        """Return the file that defines a name or an attribute of a module, and its name there.

        Args:
            path: The name or attribute, such as `utils.train`.
            node: A node of the file that uses it.

        Returns:
            None if no import of another file of the program binds the name.
        """
        if path is None or len(self._files) == 1:
            return None
        name, found = self._source.file(node).name, None
        while True:
            file, parts = self._files[name], path.split(".")
            for end in range(len(parts), 0, -1):
                head, rest = ".".join(parts[:end]), parts[end:]
                if head in file.files:
                    name, path = file.files[head], ".".join(rest)
                    break
                if end == 1 and head in file.defined:
                    name, own = file.defined[head]
                    path = ".".join([own, *rest])
                    break
            else:
                return found
            if found == (name, path) or not path:
                return found
            found = (name, path)


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
