"""Gives programs of `torch.cuda.amp` the names of `torch.amp`, which replace them since torch 2.4.

Only names and device types change: what `torch.cuda.amp` computes, `torch.amp` computes alike with
the device type "cuda". Each file is rewritten on its own.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.migration import Migration, rewritten
from halfstep.migrate.program.names import dotted, parameters
from halfstep.migrate.program.render import Edits, changed_code, rendered
from halfstep.migrate.program.source import Source, inner
from halfstep.migrate.rewriting.imports import with_imports

if TYPE_CHECKING:
    from collections.abc import Iterator

_OLD = {"torch.cuda.amp": "cuda", "torch.cpu.amp": "cpu"}
"""Maps each deprecated module to its device type."""
_POSITIONS = {
    "autocast": ("enabled", "dtype", "cache_enabled"),
    "GradScaler": (
        *("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"),
    ),
}
_DECORATORS = {"custom_fwd", "custom_bwd"}
_KEPT = {*_POSITIONS, *_DECORATORS, "OptState"}
_SUBMODULES = ("autocast_mode", "grad_scaler")
GONE = "{} has no counterpart in torch.amp"
NOT_CALLED = "{} is not called here; its calls must name their arguments, as in enabled=True"
UNPACKED = "the arguments of {} are not known here; add the device type, and write them out"


def modernized(text: str, name: str = "program") -> Migration:
    """Rewrite a file that uses `torch.cuda.amp` or `torch.cpu.amp`.

    Args:
        text: The text of the file.
        name: Its path.

    Raises:
        UserError: If `text` is not valid Python.
    """
    source = Source(text, name)
    names = _Names(source)
    edits = Edits()
    for node in [*inner(source.tree)][::-1]:  # inner expressions first
        if isinstance(node, ast.Import | ast.ImportFrom):
            _import(node, edits)
        elif isinstance(node, ast.Name | ast.Attribute):
            _use(source, node, edits, names)
    text = rendered(source, edits)
    if names.partial:
        text = with_imports(text, ["import functools"], (), set(), set())
    (done,) = rewritten(source, edits, [text])
    return done


class _Names:
    """What the names of a file refer to: a deprecated module, or a name in one."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.partial = False
        self.bound: dict[str, str] = {}
        for node in inner(source.tree):
            for alias, path in _imported(node):
                if _device(path) or any(old.startswith(f"{path}.") for old in _OLD):
                    self.bound[alias] = path

    def full(self, node: ast.AST) -> str | None:
        """Return the full path of a name in a deprecated module; None for any other node."""
        root, _, rest = (dotted(node) or "").partition(".")
        if root not in self.bound or any(
            root in parameters(each) for each in self.source.functions(node)
        ):
            return None
        path = f"{self.bound[root]}.{rest}" if rest else self.bound[root]
        return path if _device(path) else None


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            root = alias.name.partition(".")[0]
            yield (alias.asname, alias.name) if alias.asname else (root, root)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _device(path: str) -> str | None:
    """Return the device type of a deprecated module or of a name in it, else None."""
    return next((to for old, to in _OLD.items() if f"{path}.".startswith(f"{old}.")), None)


def _renamed(path: str) -> str | None:
    """Return the new path of a name in a deprecated module, or None if it has none."""
    old = next(each for each in _OLD if f"{path}.".startswith(f"{each}."))
    rest = path.removeprefix(old).strip(".").split(".")
    known = rest[-1] in {"", *_KEPT, *_SUBMODULES}
    return ".".join(filter(None, ["torch.amp", *rest])) if known else None


def _import(node: ast.Import | ast.ImportFrom, edits: Edits) -> None:
    """Rewrite an import of a deprecated module, or of names in one."""
    old = [path for _, path in _imported_paths(node) if _device(path)]
    if not old:
        return
    lines: dict[str, list[str]] = {}
    for alias, path in _imported_paths(node):
        new = _renamed(path) if _device(path) else path
        if new is None:
            edits.notes[node].append(GONE.format(path))
            new = path
        binding = f" as {alias.asname}" if alias.asname else ""
        if isinstance(node, ast.Import):
            lines.setdefault(f"import {new}{binding}", [])
        else:
            module, _, name = new.rpartition(".")
            lines.setdefault(f"from {module} import ", []).append(f"{name}{binding}")
    edits.replaced[node] = [head + ", ".join(parts) for head, parts in lines.items()]


def _imported_paths(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[ast.alias, str]]:
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias, alias.name
        elif not node.level:
            yield alias, f"{node.module}.{alias.name}"


def _use(source: Source, node: ast.Name | ast.Attribute, edits: Edits, names: _Names) -> None:
    """Rewrite the use of a name in a deprecated module."""
    path, parent = names.full(node), source.parent[node]
    if path is None or not isinstance(node.ctx, ast.Load) or isinstance(parent, ast.Compare):
        return
    if isinstance(parent, ast.Attribute) and names.full(parent):
        return
    name, device, statement = path.rpartition(".")[2], _device(path), source.statement(node)
    if name not in _KEPT:
        if path not in _OLD and name not in _SUBMODULES:
            edits.notes[statement].append(GONE.format(path))
        return
    written = source.code(node)
    if written.startswith("torch."):
        written = _renamed(path) or written
    call = parent if isinstance(parent, ast.Call) and parent.func is node else None
    if name == "OptState" or _is_class(source, node):
        edits.expressions |= {node: written} if written != source.code(node) else {}
    elif name in _DECORATORS and call is None:
        edits.expressions[node] = f'{written}(device_type="{device}")'
    elif call is None:
        edits.expressions[node] = f'functools.partial({written}, "{device}")'
        edits.notes[statement].append(NOT_CALLED.format(source.code(node)))
        names.partial = True
    else:
        _call(source, call, edits, (written, name, str(device)))


def _is_class(source: Source, node: ast.AST) -> bool:
    """Tell whether a name is used as a class: in an annotation, in `isinstance`, or as a base."""
    inside = node
    for parent in source.above(node):
        if isinstance(parent, ast.arg | ast.AnnAssign):
            return inside is parent.annotation
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            return inside is parent.returns
        if isinstance(parent, ast.Call):
            return dotted(parent.func) in {"isinstance", "issubclass"} and inside in parent.args
        if isinstance(parent, ast.ClassDef):
            return inside in parent.bases
        if isinstance(parent, ast.stmt):
            return False
        inside = parent
    return False


def _call(source: Source, call: ast.Call, edits: Edits, function: tuple[str, str, str]) -> None:
    """Add the device type to a call, and name its positional arguments."""
    written, name, device = function
    if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in call.args):
        return  # of a class of another name that takes the device type already
    unknown = any(isinstance(each, ast.Starred) for each in call.args)
    if unknown or len(call.args) > len(_POSITIONS.get(name, ("function",))):
        edits.notes[source.statement(call)].append(UNPACKED.format(source.code(call.func)))
        return
    inside = {
        each: edits.expressions.pop(each)
        for each in [*edits.expressions]
        if call in source.above(each)
    }

    def code(node: ast.AST) -> str:
        return changed_code(source, node, inside)

    if name in _DECORATORS:
        arguments = [*map(code, call.args), f'device_type="{device}"']
    else:
        given = zip(_POSITIONS[name], call.args, strict=False)
        arguments = [f'"{device}"', *(f"{key}={code(value)}" for key, value in given)]
    arguments += [code(each) for each in call.keywords]
    edits.expressions[call] = f"{written}({', '.join(arguments)})"
