"""Apex's wrappers, optimizers and layers, each with its counterpart on a target."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from halfstep.migrate.program.names import dotted

MODULES = ("apex.parallel.", "apex.optimizers.", "apex.normalization.", "apex.fp16_utils.")
_DDP_ARITHMETIC = ("allreduce_always_fp32", "gradient_average", "gradient_predivide_factor")
_DDP = "torch.nn.parallel.DistributedDataParallel"
_TORCHS_OWN = {
    *("device_ids", "output_device", "dim", "broadcast_buffers", "process_group", "bucket_cap_mb"),
    *("find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
}
"""Arguments that only torch's wrapper takes: a call with one of them calls torch's wrapper."""
_LAMB = {"adam_w_mode": "decoupled", "use_nvlamb": "always_adapt"}
_NOVOGRAD = {"reg_inside_moment": "decay_in_momentum"}
_DEFAULTS = {"bias_correction": "True", "amsgrad": "False", "wd_after_momentum": "False"}
_DEFAULTS |= {"adagrad_w_mode": "False", "capturable": "False", "master_weights": "False"}
_SILENT = {"set_grad_none", "materialize_master_grads", "memory_efficient", "adam_w_mode"}
_NOT_TORCHS = {"max_grad_norm", "eps_inside_sqrt", "use_mt", "amp_scale_adjustment"}
_ADAM = ("params", "lr", "bias_correction", "betas", "eps", "adam_w_mode", "weight_decay")
_ADAGRAD = ("params", "lr", "eps", "weight_decay")
_LAMB_PLACES = ("params", "lr", "bias_correction", "betas", "eps", "weight_decay")
_NOVOGRAD_PLACES = ("params", "lr", "bias_correction", "betas", "eps", "weight_decay")
Code = Callable[[ast.AST], str]


@dataclass
class Written:
    """The translation of a call.

    Attributes:
        text: The new source, or None if the call is not changed.
        imports: The import statements that the new source needs.
        reasons: Which arguments were left out, or why the call is not changed.
    """

    text: str | None = None
    imports: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


Translate = Callable[[bool, ast.Call, Code], Written]


def _written(function: str, arguments: list[str], reasons: list[str] | None = None) -> Written:
    """Return a call of a function (given by its full path), with the import that it needs."""
    if function.startswith("torch."):
        imports = ["import torch"]
    else:
        module, _, function = function.rpartition(".")
        imports = [f"from {module} import {function}"]
    return Written(f"{function}({', '.join(arguments)})", imports, reasons or [])


def _unpacks(call: ast.Call) -> bool:
    """Tell whether a call has arguments `*args` or `**kwargs`, whose values are unknown."""
    return any(each.arg is None for each in call.keywords) or any(
        isinstance(each, ast.Starred) for each in call.args
    )


def _data_parallel(whole: bool, call: ast.Call, code: Code) -> Written:
    del whole
    if not call.args:
        return Written()
    if any(each.arg in _TORCHS_OWN for each in call.keywords):
        return _written(_DDP, [code(each) for each in (*call.args, *call.keywords)])
    reasons = [
        f"{each.arg} is left out; with torch's wrapper, use a communication hook instead "
        "(register_comm_hook)"
        for each in call.keywords
        if each.arg in _DDP_ARITHMETIC
    ]
    # Apex's wrapper did not broadcast buffers. With delay_allreduce, it accepted parameters without
    # a gradient.
    given = {each.arg: code(each.value) for each in call.keywords}
    delayed = given.get("delay_allreduce", "False")
    unused = [] if delayed == "False" else [f"find_unused_parameters={delayed}"]
    arguments = [code(call.args[0]), *unused, "broadcast_buffers=False"]
    return _written(_DDP, arguments, reasons)


def _convert(whole: bool, call: ast.Call, code: Code) -> Written:
    del whole
    kept = [code(each) for each in call.args]
    kept += [
        f"{each.arg}={code(each.value)}"
        for each in call.keywords
        if each.arg in {"module", "process_group"}
    ]
    return _written("torch.nn.SyncBatchNorm.convert_sync_batchnorm", kept[:2])


def _group(whole: bool, call: ast.Call, code: Code) -> Written:
    del whole
    given = call.args[0] if call.args else call.keywords[0].value
    size = code(given)
    done = _written("torch.distributed.new_subgroups", [f"group_size={size}"])
    done.text = f"({done.text}[0] if {size} else None)"
    return done


def _larc(whole: bool, call: ast.Call, code: Code) -> Written:
    if not whole:
        return Written(reasons=["torch has no LARC; halfstep.optim.larc.LARC is one"])
    return _written(
        "halfstep.optim.larc.LARC", [code(each) for each in (*call.args, *call.keywords)]
    )


def _python_float(whole: bool, call: ast.Call, code: Code) -> Written:
    del whole
    return Written(f"float({', '.join(map(code, call.args))})")


def _alike(
    function: str,
    *,
    places: tuple[str, ...] = (),
    defaults: dict[str, str] | None = None,
    renamed: dict[str, str] | None = None,
) -> Translate:
    """Return a translation to an optimizer or layer with nearly the same arguments as Apex's.

    Args:
        function: The full path of the counterpart.
        places: Apex's order of the positional arguments, if the counterpart has a different order.
        defaults: Arguments whose default differs in Apex, with Apex's default.
        renamed: Maps Apex's name of an argument to the counterpart's.
    """

    def translate(whole: bool, call: ast.Call, code: Code) -> Written:
        torchs = function.startswith("torch.")
        called = dotted(call.func)
        if not torchs and not whole:
            return Written(reasons=[f"torch has no {called}; {function} is one"])
        if _unpacks(call):
            return Written(reasons=[f"arguments of {called} are not known here; write them out"])
        written = [code(each) for each in call.args[: 1 if places else None]]
        given = dict(zip(places[1:], map(code, call.args[1:]), strict=False))
        given |= {each.arg or "": code(each.value) for each in call.keywords}
        name, reasons = function, []
        if given.get("adam_w_mode") == "False" and name == "torch.optim.AdamW":
            name = "torch.optim.Adam"
        for key, value in given.items():
            if key in (renamed or {}):
                written.append(f"{(renamed or {})[key]}={value}")
            elif key in _NOT_TORCHS and torchs:
                return Written(reasons=[f"{name} does not have {key}"])
            elif key in _SILENT or (key in _DEFAULTS and torchs) or key == "amsgrad":
                if value != _DEFAULTS.get(key, value):
                    reasons.append(f"{key} is left out: {name} does not have it")
            else:
                written.append(f"{key}={value}")
        written += [f"{key}={v}" for key, v in (defaults or {}).items() if key not in given]
        return _written(name, written, reasons)

    return translate


CALLS: dict[str, Translate] = {
    "DistributedDataParallel": _data_parallel,
    "convert_syncbn_model": _convert,
    "create_syncbn_process_group": _group,
    "LARC": _larc,
    "to_python_float": _python_float,
    "SyncBatchNorm": _alike("torch.nn.SyncBatchNorm"),
    "FusedAdam": _alike("torch.optim.AdamW", places=_ADAM, defaults={"weight_decay": "0.0"}),
    "FusedSGD": _alike("torch.optim.SGD"),
    "FusedAdagrad": _alike("torch.optim.Adagrad", places=_ADAGRAD),
    "FusedLAMB": _alike("halfstep.optim.lamb.LAMB", places=_LAMB_PLACES, renamed=_LAMB),
    "FusedNovoGrad": _alike(
        "halfstep.optim.novograd.NovoGrad", places=_NOVOGRAD_PLACES, renamed=_NOVOGRAD
    ),
    "FusedLayerNorm": _alike("torch.nn.LayerNorm"),
    "FusedRMSNorm": _alike("torch.nn.RMSNorm", defaults={"eps": "1e-5"}),
    "MixedFusedLayerNorm": _alike("torch.nn.LayerNorm"),
    "MixedFusedRMSNorm": _alike("torch.nn.RMSNorm", defaults={"eps": "1e-5"}),
}
"""Maps the last part of an Apex name to the translation of its calls."""

CLASSES = {
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "SyncBatchNorm": "torch.nn.SyncBatchNorm",
    "FusedLayerNorm": "torch.nn.LayerNorm",
    "FusedRMSNorm": "torch.nn.RMSNorm",
    "FusedAdam": "torch.optim.AdamW",
    "FusedSGD": "torch.optim.SGD",
    "FusedAdagrad": "torch.optim.Adagrad",
}
"""Maps the last part of an Apex class name to the class of the objects that its counterpart makes.

Used where a program names the class without calling it, for example in `isinstance`.
"""

SAME_ARGUMENTS = {"SyncBatchNorm", "FusedLayerNorm"}
"""Classes whose counterparts in torch take the same arguments in the same order."""
