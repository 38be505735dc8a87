"""Reads static facts of models, optimizers and scalers: formats, settings, ownership."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from halfstep.doctor.internals import (
    is_compiled,
    loss_scale_of,
    norms_and_losses,
    settings_of,
)
from halfstep.doctor.record import (
    Environment,
    Fact,
    ModelFacts,
    ModuleFacts,
    OptimizerFacts,
    ScalerFacts,
)
from halfstep.doctor.record.sites import Mark, site
from halfstep.doctor.tape.modules import unwrapped
from halfstep.doctor.tensors.summary import is_finite, summary
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.formats.positions import counts_twice
from halfstep.optim.eps import computes_in_fp32

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from torch import nn

    from halfstep.doctor.signals.state.sizes import Sizes

_SETTINGS = (
    "eps",
    "momentum",
    "label_smoothing",
    "ignore_index",
    "reduction",
    "track_running_stats",
)
NAMES = 8


def innermost(optimizer: Any) -> Any:
    """Return the optimizer inside of wrappers that have its groups, such as Accelerate's."""
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer) and inner.param_groups is optimizer.param_groups:
        return innermost(inner)
    return optimizer


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return an optimizer's parameters, over all of its groups."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def gradients_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the gradients of an optimizer's parameters, without those that are None."""
    return [each.grad for each in parameters_of(optimizer) if each.grad is not None]


def environment(tensors: Iterable[torch.Tensor]) -> Environment:
    """Return the version and settings of torch, and the devices of the tensors."""
    devices = tuple(sorted({each.device.type for each in tensors}))
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    on_cuda = "cuda" in devices
    return Environment(
        torch=str(torch.__version__),
        devices=devices,
        processes=torch.distributed.get_world_size() if distributed else 1,
        tf32=on_cuda
        and (torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32),
    )


def model_facts(
    model: nn.Module,
    owned: set[int],
    reached: set[int],
    lost: set[int],
    finite: Collection[str],
) -> ModelFacts:
    """Return the facts of a model.

    Args:
        model: The model.
        owned: `id` of every parameter that an optimizer updates.
        reached: `id` of every parameter that ever received a gradient.
        lost: `id` of every parameter whose newer copies an optimizer keeps to itself.
        finite: Names of the buffers that were finite before the first call in training mode.
    """
    named = list(unwrapped(model).named_parameters())
    trained = [(name, each) for name, each in named if each.requires_grad]
    forgotten = _forgotten(model, owned, reached)
    half = next((name for name, each in named if each.dtype in HALVES), None)
    return ModelFacts(
        kind=type(unwrapped(model)).__name__,
        formats=dict(Counter(format_name(each.dtype) for _, each in trained)),
        first_half=half,
        modules=tuple(
            _module_facts(name, module)
            for name, module in unwrapped(model).named_modules()
            if isinstance(module, norms_and_losses())
        ),
        bad_statistics=_bad(
            (name, each)
            for name, each in unwrapped(model).named_buffers()
            if name in finite and not (is_finite(each) or summary(each).is_mask)
        ),
        bad_parameters=_bad(named),
        positions=tuple(
            name for name, each in unwrapped(model).named_buffers() if counts_twice(each)
        ),
        forgotten=tuple(forgotten)[:NAMES],
        unchanged=len(lost.intersection(map(id, forgotten.values()))),
        never_reached=tuple(
            name for name, each in trained if id(each) in owned and id(each) not in reached
        )[:NAMES],
        compiled=is_compiled(model),
    )


def _forgotten(model: nn.Module, owned: set[int], reached: set[int]) -> dict[str, torch.Tensor]:
    """Return the trainable parameters that had gradients, and that no optimizer updates."""
    return {
        name: each
        for name, each in unwrapped(model).named_parameters()
        if each.requires_grad and id(each) in reached and id(each) not in owned
    }


def copied_parameters(
    models: Iterable[nn.Module],
    owned: set[int],
    reached: set[int],
    foreign: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Return the parameters of which the optimizers have copies, as far as their shapes show it.

    The copies have the shapes of the parameters that no optimizer updates: those of all models with
    half-precision parameters, or of one of them.

    Args:
        models: The models.
        owned: `id` of every parameter that an optimizer updates.
        reached: `id` of every parameter that ever received a gradient.
        foreign: The parameters of optimizers that belong to no model.
    """
    shapes = Counter(each.shape for each in foreign)
    half = [each for each in models if any(one.dtype in HALVES for one in each.parameters())]
    alone = [[*_forgotten(each, owned, reached).values()] for each in half]
    together = {id(each): each for mine in alone for each in mine}
    return next(
        (
            mine
            for mine in ([*together.values()], *alone)
            if mine and Counter(each.shape for each in mine) == shapes
        ),
        [],
    )


def not_copied_back(
    parameters: Sequence[torch.Tensor], copies: Sequence[torch.Tensor], sizes: Sizes
) -> set[int]:
    """Return the `id` of the parameters that no longer change, unlike their copies.

    A parameter that got its copy back, or whose copy moves too little for its format, is equal to
    one of the copies.

    Args:
        parameters: The parameters of models.
        copies: Their copies, in any order.
        sizes: Norms of parameters before training, or in its first half.
    """
    grown = sizes.read({str(place): each for place, each in enumerate(parameters)})
    still = [parameters[int(each.parameter)] for each in grown if each.before == each.after]
    return {
        id(each)
        for each in still
        if not any(_is_copy(each, other) for other in copies if other.shape == each.shape)
    }


def _is_copy(parameter: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((parameter.to(other.device) == other.to(parameter.dtype)).all())


def _bad(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[str, ...]:
    return tuple(name for name, each in tensors if not is_finite(each))[:NAMES]


def _module_facts(path: str, module: nn.Module) -> ModuleFacts:
    settings: dict[str, Fact] = {
        name: getattr(module, name)
        for name in _SETTINGS
        if isinstance(getattr(module, name, None), int | float | str)
    }
    for name in ("weight", "running_mean", "running_var"):
        tensor = getattr(module, name, None)
        if isinstance(tensor, torch.Tensor):
            settings[name] = format_name(tensor.dtype)
    return ModuleFacts(path, type(module).__name__, settings)


def optimizer_facts(
    optimizer: Optimizer,
    moved: Mapping[Optimizer, Sequence[torch.Tensor]],
    known: set[int],
    reached: set[int],
) -> OptimizerFacts:
    """Return the facts of an optimizer.

    Args:
        optimizer: The optimizer.
        moved: The parameters that each optimizer of the program updates. The optimizer itself may
            hold copies of them.
        known: `id` of every parameter of the observed models.
        reached: `id` of every parameter that ever received a gradient.
    """
    mine = moved[optimizer]
    counts = Counter(map(id, mine))
    without = [each for each in mine if id(each) not in reached]
    elsewhere = {id(each) for other, its in moved.items() if other is not optimizer for each in its}
    skips_itself = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
    return OptimizerFacts(
        kind=type(optimizer).__name__,
        formats=dict(Counter(format_name(each.dtype) for each in parameters_of(optimizer))),
        settings=_settings(optimizer),
        largest_rate=_largest_rate(optimizer),
        largest_decay=_largest_decay(optimizer),
        state_formats=_state_formats(optimizer),
        shared=sum(key in elsewhere or count > 1 for key, count in counts.items()),
        foreign=sum(key not in known for key in counts),
        without_gradient=len(without),
        stale=sum(each.requires_grad and id(each) not in known for each in without),
        skips_itself=skips_itself,
        bad_state=_bad_state(optimizer) if skips_itself else (),
        arguments=_arguments(type(optimizer)),
    )


def _arguments(kind: type[Optimizer]) -> tuple[str, ...]:
    try:
        known = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return ()
    hidden = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in known)
    return () if hidden else tuple(each.name for each in known)


def _largest_decay(optimizer: Optimizer) -> float:
    decays = [each.get("weight_decay") for each in optimizer.param_groups]
    return max((float(each) for each in decays if isinstance(each, float | int)), default=0.0)


def _settings(optimizer: Optimizer) -> dict[str, Fact]:
    group = optimizer.param_groups[0]
    settings: dict[str, Fact] = {}
    for name, value in group.items():
        if name == "betas" and isinstance(value, tuple | list):
            settings |= {f"beta{place + 1}": float(each) for place, each in enumerate(value)}
        elif isinstance(value, bool | int | float):
            settings[name] = value
    settings["lr"] = learning_rate(optimizer)
    if computes_in_fp32(optimizer):
        settings["computes_in_fp32"] = True
    return settings


def learning_rate(optimizer: Optimizer) -> float:
    """Return the learning rate of the first group, or the first one that is not finite.

    A rate in a tensor on an accelerator is not read: it is NaN for the first group, and left out
    for the other groups.
    """
    first, *others = [_rate_of(group) for group in optimizer.param_groups]
    wrong = [each for each in others if each is not None and not math.isfinite(each)]
    if wrong:
        return wrong[0]
    return math.nan if first is None else first


def _largest_rate(optimizer: Optimizer) -> float | None:
    rates = [_rate_of(group) for group in optimizer.param_groups]
    known = [each for each in rates if each is not None]
    return max(known) if known and len(known) == len(rates) else None


def _rate_of(group: dict[str, Any]) -> float | None:
    rate = group.get("lr")
    is_elsewhere = isinstance(rate, torch.Tensor) and rate.device.type != "cpu"
    return None if rate is None or is_elsewhere else float(rate)


def _state_formats(optimizer: Optimizer) -> dict[str, str]:
    formats: dict[str, str] = {}
    for state in list(optimizer.state.values())[:1]:
        for name, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                formats[str(name)] = format_name(value.dtype)
    return formats


def _bad_state(optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of states, of a parameter's shape and in fp32, that are not finite."""
    states = {
        str(name): value
        for parameter, state in optimizer.state.items()
        for name, value in (state.items() if isinstance(state, dict) else ())
        if isinstance(value, torch.Tensor) and value.dtype == torch.float32
        if isinstance(parameter, torch.Tensor) and value.shape == parameter.shape
        if not is_finite(value)
    }
    return tuple(states)[:NAMES]


def state_step(optimizer: Optimizer) -> int:
    """Return the step count in an optimizer's state; 0 if the state has none."""
    for state in optimizer.state.values():
        step: Any = state.get("step", 0) if isinstance(state, dict) else 0
        return int(step)
    return 0


def scaler_facts(
    scaler: torch.amp.GradScaler, *, restored: bool, created_in: int, mark: Mark | None
) -> ScalerFacts:
    """Return the facts of a scaler."""
    scale = loss_scale_of(scaler)
    return ScalerFacts(
        settings=settings_of(scaler),
        scale=None if scale is None else float(scale),
        restored=restored,
        created_in=created_in,
        site=site(mark),
    )
