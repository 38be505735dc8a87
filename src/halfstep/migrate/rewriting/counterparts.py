"""Apex's wrappers, optimizers and layers, each with its counterpart on a target."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from halfstep.migrate.program.names import argument, dotted

MODULES = ("apex.parallel.", "apex.optimizers.", "apex.normalization.", "apex.fp16_utils.")
_DDP_ARITHMETIC = {
    "allreduce_always_fp32": "False",
    "gradient_average": "True",
    "gradient_predivide_factor": "1.0",
}
_DDP = "torch.nn.parallel.DistributedDataParallel"
_TORCHS_OWN = {
    *("device_ids", "output_device", "dim", "broadcast_buffers", "process_group", "bucket_cap_mb"),
    *("find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
}
"""Arguments that only torch's wrapper takes: a call with one of them calls torch's wrapper."""
_ADAMS = {"True": "torch.optim.AdamW", "False": "torch.optim.Adam"}
"""The counterpart of FusedAdam for each value of `adam_w_mode`."""
_OF_TORCHS_ADAM = {"amsgrad": "amsgrad", "capturable": "capturable"}
"""Arguments that other optimizers of torch lack."""
_ADAM_OR_ADAMW = (
    "the value of adam_w_mode={} is not known here; write torch.optim.AdamW if it is True, else "
    "torch.optim.Adam"
)
_DEFAULTS = {"bias_correction": "True", "amsgrad": "False", "wd_after_momentum": "False"}
_DEFAULTS |= {"adagrad_w_mode": "False", "capturable": "False", "master_weights": "False"}
_DEFAULTS |= {"channel_last": "False", "fuse_relu": "False"}
_SILENT = {"set_grad_none", "materialize_master_grads", "memory_efficient", "adam_w_mode"}
_NOT_TORCHS = {"max_grad_norm", "eps_inside_sqrt", "use_mt", "amp_scale_adjustment"}
_NOT_TORCHS |= {"channel_last", "fuse_relu"}
_DDP_ARGUMENTS = (
    "module message_size delay_allreduce shared_param allreduce_trigger_params "
    "retain_allreduce_buffers allreduce_always_fp32 num_allreduce_streams allreduce_communicators "
    "gradient_average gradient_predivide_factor gradient_average_split_factor prof"
)
_ADAM_ARGUMENTS = (
    "params lr bias_correction betas eps adam_w_mode weight_decay amsgrad set_grad_none "
    "capturable master_weights"
)
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


def _unknown(call: ast.Call) -> Written:
    """Leave a call that unpacks its arguments."""
    return Written(reasons=[f"arguments of {dotted(call.func)} are not known here; write them out"])


def _given(call: ast.Call, names: str, code: Code) -> dict[str, str]:
    """Return the source of each argument by its name; `names` are in the order of positions."""
    given = dict(zip(names.split(), map(code, call.args), strict=False))
    return given | {each.arg or "": code(each.value) for each in call.keywords}


def _data_parallel(whole: bool, call: ast.Call, code: Code) -> Written:
    del whole
    devices = isinstance(argument(call, "device_ids", 1), ast.List)
    if devices or any(each.arg in _TORCHS_OWN for each in call.keywords):
        return _written(_DDP, [code(each) for each in (*call.args, *call.keywords)])
    if _unpacks(call):
        return _unknown(call)
    given = _given(call, _DDP_ARGUMENTS, code)
    if "module" not in given:
        return Written()
    reasons = [
        f"{name} is left out; with torch's wrapper, use a communication hook instead "
        "(register_comm_hook)"
        for name, value in given.items()
        if value != _DDP_ARITHMETIC.get(name, value)
    ]
    # Apex's wrapper did not broadcast buffers. With delay_allreduce, it accepted parameters without
    # a gradient.
    delayed = given.get("delay_allreduce", "False")
    unused = [] if delayed == "False" else [f"find_unused_parameters={delayed}"]
    return _written(_DDP, [given["module"], *unused, "broadcast_buffers=False"], reasons)


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
    names: str,
    *,
    defaults: dict[str, str] | None = None,
    renamed: dict[str, str] | None = None,
) -> Translate:
    """Return a translation to a function or class with nearly the same arguments as Apex's.

    Args:
        function: The full path of the counterpart.
        names: Apex's names of the arguments, in Apex's order.
        defaults: Arguments whose default differs in Apex, with Apex's default.
        renamed: Maps Apex's name of an argument to the counterpart's.
    """

    def translate(whole: bool, call: ast.Call, code: Code) -> Written:
        torchs = function.startswith("torch.")
        if not torchs and not whole:
            return Written(reasons=[f"torch has no {dotted(call.func)}; {function} is one"])
        if _unpacks(call):
            return _unknown(call)
        given = _given(call, names, code)
        for key, value in given.items() if torchs else ():
            if key in _NOT_TORCHS and value != _DEFAULTS.get(key):
                return Written(reasons=[f"{function} does not have {key}"])
        written = [given.pop(names.partition(" ")[0])] if call.args else []
        reasons = []
        for key, value in given.items():
            if key in (renamed or {}):
                written.append(f"{(renamed or {})[key]}={value}")
            elif key in _SILENT or (key in _DEFAULTS and torchs) or key == "amsgrad":
                if value != _DEFAULTS.get(key, value):
                    reasons.append(f"{key} is left out: {function} does not have it")
            else:
                written.append(f"{key}={value}")
        written += [f"{key}={v}" for key, v in (defaults or {}).items() if key not in given]
        return _written(function, written, reasons)

    return translate


def _adam(whole: bool, call: ast.Call, code: Code) -> Written:
    decoupled = _given(call, _ADAM_ARGUMENTS, code).get("adam_w_mode", "True")
    if decoupled not in _ADAMS:
        return Written(reasons=[_ADAM_OR_ADAMW.format(decoupled)])
    translate = _alike(
        _ADAMS[decoupled],
        _ADAM_ARGUMENTS,
        defaults={"weight_decay": "0.0"},
        renamed=_OF_TORCHS_ADAM,
    )
    return translate(whole, call, code)


_LAYER_NORM = "normalized_shape eps elementwise_affine memory_efficient"
CALLS: dict[str, Translate] = {
    "DistributedDataParallel": _data_parallel,
    "convert_syncbn_model": _alike(
        "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "module process_group channel_last"
    ),
    "create_syncbn_process_group": _group,
    "LARC": _larc,
    "to_python_float": _python_float,
    "SyncBatchNorm": _alike(
        "torch.nn.SyncBatchNorm",
        "num_features eps momentum affine track_running_stats process_group channel_last fuse_relu",
    ),
    "FusedAdam": _adam,
    "FusedSGD": _alike(
        "torch.optim.SGD",
        "params lr momentum dampening weight_decay nesterov wd_after_momentum "
        "materialize_master_grads set_grad_none",
    ),
    "FusedAdagrad": _alike(
        "torch.optim.Adagrad", "params lr eps weight_decay set_grad_none adagrad_w_mode"
    ),
    "FusedLAMB": _alike(
        "halfstep.optim.lamb.LAMB",
        "params lr bias_correction betas eps weight_decay amsgrad adam_w_mode grad_averaging "
        "set_grad_none max_grad_norm use_nvlamb",
        renamed={"adam_w_mode": "decoupled", "use_nvlamb": "always_adapt"},
    ),
    "FusedNovoGrad": _alike(
        "halfstep.optim.novograd.NovoGrad",
        "params lr bias_correction betas eps weight_decay amsgrad reg_inside_moment "
        "grad_averaging norm_type init_zero set_grad_none",
        renamed={"reg_inside_moment": "decay_in_momentum"},
    ),
    "FusedLayerNorm": _alike("torch.nn.LayerNorm", _LAYER_NORM),
    "FusedRMSNorm": _alike("torch.nn.RMSNorm", _LAYER_NORM, defaults={"eps": "1e-5"}),
    "MixedFusedLayerNorm": _alike("torch.nn.LayerNorm", _LAYER_NORM),
    "MixedFusedRMSNorm": _alike("torch.nn.RMSNorm", _LAYER_NORM, defaults={"eps": "1e-5"}),
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

SAME_ARGUMENTS = {
    "SyncBatchNorm": {"channel_last", "fuse_relu"},
    "FusedLayerNorm": {"memory_efficient"},
}
"""Maps the classes whose counterparts take the same arguments to the arguments that torch lacks."""
