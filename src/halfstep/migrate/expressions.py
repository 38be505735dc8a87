"""Calls and names of Apex inside expressions, and what they are written as.

What belongs to amp's protocol (initialize, scale_loss, step) is rewritten by the statement, in
`rewrite.py`; here is what has a counterpart wherever it stands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from halfstep.migrate.layout import call_text
from halfstep.migrate.names import code, dotted
from halfstep.migrate.recipes import recipe_argument
from halfstep.migrate.targets import MASTERS, EngineTarget, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.migrate.program import Program

    Report = Callable[[cst.CSTNode, str], None]

_DDP_ARITHMETIC = ("allreduce_always_fp32", "gradient_average", "gradient_predivide_factor")
_LAMB = {"adam_w_mode": "decoupled", "use_nvlamb": "always_adapt"}
_NOVOGRAD = {"reg_inside_moment": "decay_in_momentum"}
_DEFAULTS = {"bias_correction": "True", "amsgrad": "False", "wd_after_momentum": "False"}
_DEFAULTS |= {"adagrad_w_mode": "False", "capturable": "False", "master_weights": "False"}
_SILENT = {"set_grad_none", "materialize_master_grads", "memory_efficient", "adam_w_mode"}


class Expressions(cst.CSTTransformer):
    """Rewrites the expressions of one statement, but not those of the statements in it.

    Args:
        program: The facts.
        target: What takes amp's place.
        report: Notes why something was left, at a node.
        rebound: Takes names of Apex's that are imported from elsewhere now.
    """

    def __init__(self, program: Program, target: Target, report: Report, rebound: set[str]) -> None:
        super().__init__()
        self.program = program
        self.target = target
        self.report = report
        self.rebound = rebound
        self._listed: set[cst.Call] = set()

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> bool:  # noqa: N802  (libcst's)
        """Leave inner statements to those who know their surroundings."""
        del node
        return False

    def visit_Import(self, node: cst.Import) -> bool:  # noqa: N802
        """Leave imports for the end."""
        del node
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:  # noqa: N802
        """Leave imports for the end."""
        del node
        return False

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        """Note `list(amp.master_params(...))`: weights are meant, not gradients."""
        if dotted(node.func) == "list" and node.args and isinstance(node.args[0].value, cst.Call):
            self._listed.add(node.args[0].value)

    def leave_Call(  # noqa: N802
        self, original_node: cst.Call, updated_node: cst.Call
    ) -> cst.BaseExpression:
        """Rewrite a call of something of Apex's."""
        name = self.program.imports.qualified(original_node.func)
        if name is None:
            return updated_node
        last = name.rpartition(".")[2]
        if name in {"apex.amp.state_dict", "apex.amp.load_state_dict"}:
            function = cst.parse_expression(f"{self.target.object}.{last}")
            return updated_node.with_changes(func=function)
        if name == "apex.amp.master_params" and updated_node.args:
            given = code(updated_node.args[0].value)
            if self.target.clips_itself and original_node not in self._listed:
                self.report(
                    original_node,
                    "gradients are still scaled before the engine's step; to clip write "
                    "Engine(..., clip_norm=...)",
                )
                return updated_node
            return cst.parse_expression(MASTERS.format(given))
        translate = _CALLS.get(name.rpartition(".")[2]) if name.startswith(_MODULES) else None
        if translate is not None:
            return translate(self, original_node, updated_node)
        return updated_node

    def leave_Attribute(  # noqa: N802
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        """Answer `amp.state_dict().values()`, which reads the scales."""
        return self._with_scales(original_node, updated_node)

    def leave_Subscript(  # noqa: N802
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        """Answer `amp.state_dict()["loss_scaler0"]`, which reads a scale."""
        return self._with_scales(original_node, updated_node)

    def _with_scales(
        self, old: cst.Attribute | cst.Subscript, new: cst.Attribute | cst.Subscript
    ) -> cst.BaseExpression:
        owner = old.value
        read = (
            isinstance(owner, cst.Call)
            and self.program.imports.qualified(owner.func) == "apex.amp.state_dict"
        )
        if not read or not self.program.initializes:
            return new
        losses = recipe_argument(self.program.initializes[0].call).losses
        return new.with_changes(value=cst.parse_expression(self.target.scales(losses)))

    def leave_Comparison(  # noqa: N802
        self, original_node: cst.Comparison, updated_node: cst.Comparison
    ) -> cst.BaseExpression:
        """Answer `"state_dict" in amp.__dict__`."""
        if len(original_node.comparisons) == 1:
            right = dotted(original_node.comparisons[0].comparator) or ""
            owner, _, last = right.rpartition(".")
            names = self.program.imports
            if last == "__dict__" and names.bound.get(owner) == "apex.amp":
                return cst.Name("True")
        return updated_node

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:  # noqa: N802
        """Pass what takes amp's place where amp itself was passed."""
        if self.program.imports.qualified(original_node.value) == "apex.amp":
            return updated_node.with_changes(value=cst.parse_expression(self.target.object))
        return updated_node

    def written(self, original: cst.Call, function: str, arguments: list[str]) -> cst.Call:
        """Return a call of `function`, importing its first name."""
        root = function.split(".", maxsplit=1)[0]
        if root == "torch":
            self.target.imports["import torch"] = None
        else:
            module, _, function = function.rpartition(".")
            self.target.imports[f"from {module} import {function}"] = None
            self.rebound.add(function)
        call = cst.parse_expression(call_text(function, arguments))
        assert isinstance(call, cst.Call)
        return call.with_changes(lpar=original.lpar, rpar=original.rpar)


_MODULES = ("apex.parallel.", "apex.optimizers.", "apex.normalization.", "apex.fp16_utils.")


def _data_parallel(here: Expressions, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
    for arg in original.args[1:]:
        name = arg.keyword.value if arg.keyword else ""
        if name in _DDP_ARITHMETIC:
            here.report(
                original,
                f"{name} is left out; torch's wrapper takes it as a communication hook "
                "(register_comm_hook)",
            )
    module = code(updated.args[0].value)
    return here.written(original, "torch.nn.parallel.DistributedDataParallel", [module])


def _convert(here: Expressions, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
    kept = [
        code(arg.value) for arg in updated.args if not arg.keyword or arg.keyword.value in _KEPT
    ]
    return here.written(original, "torch.nn.SyncBatchNorm.convert_sync_batchnorm", kept[:2])


_KEPT = ("module", "process_group")


def _group(here: Expressions, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
    size = code(updated.args[0].value)
    call = here.written(original, "torch.distributed.new_subgroups", [f"group_size={size}"])
    return cst.parse_expression(f"({code(call)}[0] if {size} else None)")


def _larc(here: Expressions, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
    if not isinstance(here.target, EngineTarget):
        here.report(original, "torch has no LARC; halfstep.optim.larc.LARC is one")
        return updated
    return here.written(original, "halfstep.optim.larc.LARC", [code(a) for a in _args(updated)])


def _python_float(here: Expressions, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
    del here, original
    return updated.with_changes(func=cst.Name("float"))


def _args(call: cst.Call) -> list[cst.Arg]:
    return [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in call.args]


def _optimizer(
    function: str, *, defaults: dict[str, str] | None = None, renamed: dict[str, str] | None = None
) -> Callable[[Expressions, cst.Call, cst.Call], cst.BaseExpression]:
    """Return a translation to an optimizer or layer that takes the same arguments but for some."""

    def translate(here: Expressions, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        torchs = function.startswith("torch.")
        if not torchs and not isinstance(here.target, EngineTarget):
            here.report(original, f"torch has no {code(original.func)}; {function} is one")
            return updated
        written, name = [], function
        given = {arg.keyword.value: code(arg.value) for arg in updated.args if arg.keyword}
        if given.get("adam_w_mode") == "False" and name == "torch.optim.AdamW":
            name = "torch.optim.Adam"
        for arg in _args(updated):
            key = arg.keyword.value if arg.keyword else None
            if key in (renamed or {}):
                written.append(f"{(renamed or {})[key or '']}={code(arg.value)}")
            elif key in _SILENT or (key in _DEFAULTS and torchs):
                if key in _DEFAULTS and code(arg.value) != _DEFAULTS[key]:
                    here.report(original, f"{key} is left out: {name} does not have it")
            else:
                written.append(code(arg))
        for key, value in (defaults or {}).items():
            if key not in given:
                written.append(f"{key}={value}")
        return here.written(original, name, written)

    return translate


_CALLS: dict[str, Callable[[Expressions, cst.Call, cst.Call], cst.BaseExpression]] = {
    "DistributedDataParallel": _data_parallel,
    "convert_syncbn_model": _convert,
    "create_syncbn_process_group": _group,
    "LARC": _larc,
    "to_python_float": _python_float,
    "SyncBatchNorm": _optimizer("torch.nn.SyncBatchNorm"),
    "FusedAdam": _optimizer("torch.optim.AdamW", defaults={"weight_decay": "0.0"}),
    "FusedSGD": _optimizer("torch.optim.SGD"),
    "FusedAdagrad": _optimizer("torch.optim.Adagrad"),
    "FusedLAMB": _optimizer("halfstep.optim.lamb.LAMB", renamed=_LAMB),
    "FusedNovoGrad": _optimizer("halfstep.optim.novograd.NovoGrad", renamed=_NOVOGRAD),
    "FusedLayerNorm": _optimizer("torch.nn.LayerNorm"),
    "FusedRMSNorm": _optimizer("torch.nn.RMSNorm", defaults={"eps": "1e-5"}),
}
