"""`amp.initialize`: checks its arguments, changes models and optimizers, and sets amp's state."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from halfstep.apex.amp._amp_state import _amp_state, maybe_print
from halfstep.apex.amp.casts import end_casts, start_casts
from halfstep.apex.amp.handle import disable_casts
from halfstep.apex.amp.late_masters import LateMasterWeights
from halfstep.apex.amp.models import cast_model, check_models
from halfstep.apex.amp.optimizers import process_optimizer, refuse_processed
from halfstep.apex.amp.properties import BRIEF, OPT_LEVELS, Properties, properties_for
from halfstep.apex.amp.scaler import LossScaler
from halfstep.apex.fp16_utils.convert import hold_cpu_kernels, release_cpu_kernels
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Sequence


def initialize(  # noqa: PLR0913, PLR0917  # Apex's signature
    models: Any,
    optimizers: Any = None,
    enabled: bool = True,
    opt_level: str = "O1",
    cast_model_type: Any = None,
    patch_torch_functions: bool | None = None,
    keep_batchnorm_fp32: bool | str | None = None,
    master_weights: bool | None = None,
    loss_scale: float | str | None = None,
    cast_model_outputs: torch.dtype | None = None,
    num_losses: int = 1,
    verbosity: int = 1,
    min_loss_scale: float | None = None,
    max_loss_scale: float = 2.0**24,
) -> Any:
    """Prepare models and optimizers for mixed-precision training, in place.

    Options that are not None override those of the level.

    Args:
        models: A module or a list of modules, not yet wrapped for data parallelism.
        optimizers: An optimizer, a list of optimizers, or None for inference.
        enabled: If False, all functions of `amp` do nothing.
        opt_level: "O0": fp32. "O1": fp32 weights, and the inputs of torch's functions are cast.
            "O2": fp16 weights, with batch norm and master weights in fp32. "O3": fp16.
        cast_model_type: Format of the models' weights. False does not cast them. `torch.bfloat16`
            is also possible under O2 and O3.
        patch_torch_functions: Whether torch's functions cast their inputs (O1 only).
        keep_batchnorm_fp32: Whether affine batch norm stays in fp32 when weights are cast.
        master_weights: Whether optimizers update fp32 copies of half-precision weights.
        loss_scale: "dynamic", or a static scale as a number or a string such as "128.0".
        cast_model_outputs: Format of the models' outputs, at any level.
        num_losses: Number of losses with a scale of their own, selected by `loss_id`.
        verbosity: 0 prints nothing.
        min_loss_scale: Lower limit of a dynamic scale; None means 2**-10.
        max_loss_scale: Upper limit of a dynamic scale.

    Returns:
        The models and the optimizers, each a list if it was given as one; only the models if
        `optimizers` is None.

    Raises:
        RuntimeError: If options contradict each other, a model is wrapped for data parallelism or
            already in fp16, or an optimizer was passed to `initialize` before.
        TypeError: If `models` or `optimizers` has the wrong type.
        ValueError: If `loss_scale` is neither "dynamic" nor a positive number.
    """
    _amp_state.verbosity = verbosity
    if not enabled:
        end_casts()
        _amp_state.opt_properties = Properties()
        _amp_state.loss_scalers = []
        return models if optimizers is None else (models, optimizers)
    if not torch.backends.cudnn.enabled:
        raise RuntimeError(
            "Amp requires torch.backends.cudnn.enabled = True; set it so before amp.initialize"
        )
    overrides = {
        "cast_model_type": cast_model_type,
        "patch_torch_functions": patch_torch_functions,
        "keep_batchnorm_fp32": keep_batchnorm_fp32,
        "master_weights": master_weights,
        "loss_scale": loss_scale,
    }
    properties = properties_for(opt_level, overrides)
    _print_options(properties)
    optimizer_list = _optimizer_list(optimizers)
    model_list = _model_list(models)
    check_models(model_list)
    for optimizer in optimizer_list:
        refuse_processed(optimizer)

    end_casts()
    release_cpu_kernels()
    if properties.cast_model_type in HALVES:
        for model in model_list:
            hold_cpu_kernels(model)
    _change(model_list, optimizer_list, properties, cast_model_outputs)
    _amp_state.min_loss_scale = min_loss_scale
    _amp_state.max_loss_scale = max_loss_scale
    _amp_state.loss_scalers = [
        LossScaler(
            properties.loss_scale, min_loss_scale=min_loss_scale, max_loss_scale=max_loss_scale
        )
        for _ in range(num_losses)
    ]
    if properties.patch_torch_functions:
        start_casts(cpu=not _on_accelerator(model_list), verbose=verbosity == 2)
    _amp_state.opt_properties = properties
    return models if optimizers is None else (models, optimizers)


def _change(
    models: list[nn.Module],
    optimizers: list[Optimizer],
    properties: Properties,
    cast_model_outputs: torch.dtype | None,
) -> None:
    masters = None
    if properties.master_weights:
        masters = LateMasterWeights(properties.cast_model_type or None)
        masters.prepare(models, optimizers)  # before the models are cast
    for model in models:
        cast_model(model, properties, cast_model_outputs)
    for optimizer in optimizers:
        if properties.cast_model_type and not masters:
            optimizer.load_state_dict(optimizer.state_dict())  # casts it to the parameters' format
        process_optimizer(
            optimizer,
            properties,
            masters,
            disable_casts if properties.patch_torch_functions else nullcontext,
        )


def _on_accelerator(models: Sequence[nn.Module]) -> bool:
    return any(param.device.type != "cpu" for model in models for param in model.parameters())


def _model_list(models: Any) -> list[nn.Module]:
    if isinstance(models, nn.Module):
        return [models]
    if isinstance(models, list) and all(isinstance(model, nn.Module) for model in models):
        return models
    raise TypeError(
        f"models must be either a single model or a list of models. Given: {_described(models)}; "
        "write amp.initialize(model, ...) or amp.initialize([model1, model2], ...)"
    )


def _optimizer_list(optimizers: Any) -> list[Optimizer]:
    if optimizers is None:
        return []
    given = optimizers if isinstance(optimizers, list) else [optimizers]
    for optimizer in given:
        if type(optimizer).__name__ == "FP16_Optimizer":
            raise RuntimeError(
                "An incoming optimizer is an instance of apex.fp16_utils.FP16_Optimizer. The "
                "optimizer(s) passed to amp.initialize() must be bare instances of either ordinary "
                "Pytorch optimizers, or Apex fused optimizers; pass the optimizer inside it, or "
                "leave amp out"
            )
    if all(isinstance(optimizer, Optimizer) for optimizer in given):
        return given
    raise TypeError(
        "optimizers must be either a single optimizer or a list of optimizers. Given: "
        f"{_described(optimizers)}; write amp.initialize(models, optimizer, ...) or "
        "amp.initialize(models, [optimizer1, optimizer2], ...)"
    )


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {', '.join(type(each).__name__ for each in value)}"
    return f"a {type(value).__name__}"


def _print_options(properties: Properties) -> None:
    level = properties.opt_level
    defaults = {"enabled": True, "opt_level": level, **OPT_LEVELS[level]}
    for title, options in (
        (f"Selected optimization level {BRIEF[level]}", {}),
        ("Defaults for this optimization level are:", defaults),
        ("Processing user overrides (additional kwargs that are not None)...", {}),
        ("After processing overrides, optimization options are:", properties.options),
    ):
        maybe_print(title, rank0=True)
        for name, value in options.items():
            maybe_print(f"{name:22} : {value}", rank0=True)
