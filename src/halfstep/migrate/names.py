"""What names in a program stand for: which of them are Apex's, however they were imported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import libcst as cst

if TYPE_CHECKING:
    from collections.abc import Iterable

_MODULE = cst.Module(body=[])

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
    "apex.normalization": ("FusedLayerNorm", "FusedRMSNorm"),
    "apex.optimizers": (
        *("FusedAdagrad", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedSGD"),
        "FusedMixedPrecisionLamb",
    ),
    "apex.parallel": (
        *("DistributedDataParallel", "Reducer", "SyncBatchNorm", "convert_syncbn_model"),
        "create_syncbn_process_group",
    ),
}
"""What `from ... import *` binds, by package."""


def code(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return _MODULE.code_for_node(node).strip()


def dotted(node: cst.CSTNode | None) -> str | None:
    """Return `a.b.c` for a name or a chain of attributes, else None."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        owner = dotted(node.value)
        return None if owner is None else f"{owner}.{node.attr.value}"
    return None


def statements(body: cst.BaseSuite) -> list[cst.BaseStatement]:
    """Return the statements of a suite, of `if x: y()` too."""
    if isinstance(body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine(body=body.body)]
    assert isinstance(body, cst.IndentedBlock)
    return list(body.body)


def calls(node: cst.CSTNode) -> list[cst.Call]:
    """Return every call in a node, nested functions included."""
    found: list[cst.Call] = []

    class Collect(cst.CSTVisitor):
        def visit_Call(self, node: cst.Call) -> None:  # noqa: N802  (libcst's)
            found.append(node)

    node.visit(Collect())
    return found


def used_names(node: cst.CSTNode) -> set[str]:
    """Return every name in a node, whatever it is used for; of `a.b` only `a`."""
    found: set[str] = set()

    class Collect(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
            found.add(node.value)

        def visit_Attribute(self, node: cst.Attribute) -> bool:  # noqa: N802
            node.value.visit(self)
            return False

        def visit_Arg(self, node: cst.Arg) -> bool:  # noqa: N802
            node.value.visit(self)
            return False

    node.visit(Collect())
    return found


def assigned_names(node: cst.CSTNode) -> set[str]:
    """Return the names that a node binds, at any depth; attributes as `self.x`."""
    found: set[str] = set()

    def take(target: cst.BaseExpression) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                take(element.value)
        elif name := dotted(target):
            found.add(name)

    class Collect(cst.CSTVisitor):
        def visit_AssignTarget(self, node: Any) -> None:  # noqa: N802
            take(node.target)

        visit_AugAssign = visit_AnnAssign = visit_For = visit_AssignTarget  # noqa: N815

        def visit_AsName(self, node: cst.AsName | cst.Param) -> None:  # noqa: N802
            take(node.name)

        visit_Param = visit_AsName  # noqa: N815

    node.visit(Collect())
    return found


def argument(call: cst.Call, name: str, place: int | None = None) -> cst.BaseExpression | None:
    """Return an argument of a call by its name or its place, else None."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg.value
    if place is not None and place < len(call.args):
        arg = call.args[place]
        if arg.keyword is None and not arg.star:
            return arg.value
    return None


def fresh(name: str, taken: Iterable[str]) -> str:
    """Return `name`, or a variant that a program does not use yet."""
    used = set(taken)
    return next(each for each in (name, f"amp_{name}", f"halfstep_{name}") if each not in used)


class Imports:
    """What the imports of a program bind to Apex, wherever in the program they stand."""

    def __init__(self, module: cst.Module) -> None:
        self.bound: dict[str, str] = {}
        imports = self

        class Collect(cst.CSTVisitor):
            def visit_Import(self, node: cst.Import) -> None:  # noqa: N802
                for alias in node.names:
                    imports.add_import(alias)

            def visit_ImportFrom(self, node: cst.ImportFrom) -> None:  # noqa: N802
                imports.add_import_from(node)

        module.visit(Collect())

    def add_import(self, alias: cst.ImportAlias) -> None:
        """Take in one name of an `import`."""
        path = dotted(alias.name) or ""
        if not is_apex(path):
            return
        if alias.asname is not None:
            self.bound[code(alias.asname.name)] = plain(path)
        elif path.startswith("apex"):
            self.bound["apex"] = "apex"

    def add_import_from(self, node: cst.ImportFrom) -> None:
        """Take in a `from ... import ...`."""
        path = dotted(node.module) or ""
        if node.relative:
            return
        if isinstance(node.names, cst.ImportStar):
            package = plain(path) if is_apex(path) else ""
            self.bound |= {name: f"{package}.{name}" for name in STARRED.get(package, ())}
            return
        for alias in node.names:
            name = f"{path}.{dotted(alias.name)}"
            if is_apex(name):
                bound = code(alias.asname.name) if alias.asname else dotted(alias.name) or ""
                self.bound[bound] = plain(name)

    def qualified(self, node: cst.CSTNode | None) -> str | None:
        """Return `apex.amp.scale_loss` for what stands for it here; None for what is not Apex's."""
        name = dotted(node)
        if name is None:
            return None
        root, _, rest = name.partition(".")
        if root not in self.bound:
            return None
        return f"{self.bound[root]}.{rest}" if rest else self.bound[root]


def is_apex(path: str) -> bool:
    """Tell whether a module or name is Apex's, or the drop-in for it."""
    return re.match(r"(halfstep\.)?apex(\.|$)", path) is not None


def plain(path: str) -> str:
    """Return the name that it has in Apex."""
    return path.removeprefix("halfstep.")
