"""Names of Apex that have no counterpart, and notes on how to run them."""

from __future__ import annotations

RUNS_UNCHANGED = "has no counterpart; `python -m halfstep.apex` runs it as it is"
NOT_OURS = "has no counterpart, not even in halfstep.apex: it needs NVIDIA's own Apex"
NOT_CALLED = "{} is not called here, so migrate does not know its arguments{}"
COUNTERPART = "; its counterpart is {}"
STARS = "migrate does not know the names that `*` imports; import them by name, and migrate again"

DROP_IN = {
    "amp_C": ("multi_tensor_axpby", "multi_tensor_l2norm", "multi_tensor_scale"),
    "apex_C": ("flatten", "unflatten"),
    "apex.contrib": ("clip_grad", "optimizers", "xentropy"),
    "apex.contrib.clip_grad": ("clip_grad_norm_",),
    "apex.contrib.optimizers": ("FP16_Optimizer",),
    "apex.contrib.optimizers.fp16_optimizer": ("FP16_Optimizer",),
    "apex.contrib.xentropy": ("SoftmaxCrossEntropyLoss",),
    "apex.contrib.xentropy.softmax_xentropy": ("SoftmaxCrossEntropyLoss",),
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
    "apex.parallel.LARC": ("LARC",),
    "apex.parallel.optimized_sync_batchnorm": ("SyncBatchNorm",),
}
"""The names in halfstep.apex outside of amp, by module; a test checks that they exist there."""


def leftover(name: str) -> str | None:
    """Return the note for a name of Apex that was not rewritten; None if it needs no note."""
    if name in DROP_IN or any(each.startswith(f"{name}.") for each in DROP_IN):
        return None  # a module: the note belongs to the name that the program takes from it
    parts = name.split(".")
    for at in range(1, len(parts)):
        if parts[at] in DROP_IN.get(".".join(parts[:at]), ()):
            return f"{name} {RUNS_UNCHANGED}"
    return f"{name} {NOT_OURS}"
