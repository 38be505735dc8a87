"""Builds optimizers: torch's, fused where possible, those with a small state, and any of timm's."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from timm.optim import (  # type: ignore[attr-defined]  # timm's public names, without __all__
    create_optimizer_v2,
    get_optimizer_info,
    list_optimizers,
    param_groups_layer_decay,
    param_groups_weight_decay,
)
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from halfstep.errors import UserError, closest, reason
from halfstep.optim.bf16 import AdamBf16, SGDBf16
from halfstep.optim.low_bit import low_bit_adam
from halfstep.train.build.weights import head_of
from halfstep.train.config.optimizer import (
    AdamWConfig,
    LowBitAdamConfig,
    SgdConfig,
    TimmOptimizerConfig,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from halfstep.train.config.optimizer import AdamConfig, OptimizerConfig

_LOOKAHEAD = "lookahead_"


def build_optimizer(
    config: OptimizerConfig,
    model: nn.Module,
    *,
    classes: int = 0,
    fused: bool,
    lr_factor: float = 1.0,
    seed: int = 0,
) -> Optimizer:
    """Return the optimizer that a config names, for the trainable parameters of a model.

    Args:
        config: The config section `optimizer`.
        model: The model whose parameters are updated.
        classes: Number of logits, which identifies the last layer if `head_lr` is set.
        fused: Whether to use a fused kernel, if the optimizer has one. On a GPU this also avoids a
            synchronisation when a loss scale is used.
        lr_factor: Factor of the learning rate, for scaling it with the batch size.
        seed: Seed of the stochastic rounding of bf16 states.

    Raises:
        UserError: If no parameter is trainable, if `layer_decay` or `head_lr` is set and the
            model's layers are not known, if timm has no such optimizer, if torchao is needed and
            missing, or if the optimizer refuses its arguments or parameters.
    """
    lr = config.lr * lr_factor
    groups = _groups(model, config, lr)
    if config.head_lr is not None:
        groups = _with_head_apart(groups, model, classes, config.head_lr * lr_factor)
    if isinstance(config, TimmOptimizerConfig):
        return _timms(config, groups, lr, fused=fused)
    of_groups = {"lr", "decay_norms_and_biases", "layer_decay", "head_lr"}
    settings = config.model_dump(exclude={"name", "state", *of_groups})
    make = _constructor(config, fused=fused, seed=seed)
    try:
        return make(groups, lr=lr, **settings)
    except TypeError as error:  # parameters in a format that the optimizer does not support
        raise UserError(str(error)) from error


def _constructor(
    config: SgdConfig | AdamConfig | LowBitAdamConfig, *, fused: bool, seed: int
) -> Callable[..., Optimizer]:
    """Return a function that builds the optimizer from groups, a learning rate and settings."""
    if isinstance(config, LowBitAdamConfig):
        try:
            return low_bit_adam(config.name)
        except ImportError as error:
            raise UserError(
                f"optimizer.name is {config.name!r}, which needs torchao; write "
                "pip install 'halfstep[torchao]', or optimizer.name=adamw optimizer.state=bf16"
            ) from error
    if not config.state:
        return partial({"sgd": SGD, "adam": Adam, "adamw": AdamW}[config.name], fused=fused)
    if isinstance(config, SgdConfig):
        return partial(SGDBf16, seed=seed)
    return partial(AdamBf16, decoupled=isinstance(config, AdamWConfig), seed=seed)


def _groups(model: nn.Module, config: OptimizerConfig, lr: float) -> list[dict[str, Any]]:
    """Return the parameter groups, which may differ in weight decay and learning rate."""
    trained = [param for param in model.parameters() if param.requires_grad]
    if not trained:
        raise UserError(
            "model.freeze leaves no parameter to train; leave the classifier's layer out of it"
        )
    spares = not config.decay_norms_and_biases and config.weight_decay > 0
    spared: set[str] = getattr(model, "no_weight_decay", set)() if spares else set()
    if config.layer_decay is not None:
        if not hasattr(model, "group_matcher"):
            raise UserError(
                f"optimizer.layer_decay is {config.layer_decay}, but the model does not define the "
                "order of its layers, as timm models do with group_matcher; write "
                "model.name=timm:... or "
                "optimizer.layer_decay=null"
            )
        groups = param_groups_layer_decay(
            model,
            config.weight_decay,
            spared,
            weight_decay_exclude_1d=spares,
            layer_decay=config.layer_decay,
        )
        return [{**group, "lr": lr * group.pop("lr_scale")} for group in groups]
    if not spares:
        return [{"params": trained}]
    groups = param_groups_weight_decay(model, config.weight_decay, no_weight_decay_list=spared)
    return [group for group in groups if group["params"]]


def _with_head_apart(
    groups: list[dict[str, Any]], model: nn.Module, classes: int, lr: float
) -> list[dict[str, Any]]:
    """Move the parameters of the last layer to separate groups with the learning rate `lr`."""
    names = head_of(model, classes)
    if not names:
        raise UserError(
            "optimizer.head_lr is given, but the model's last layer is not known; write "
            "optimizer.head_lr=null"
        )
    head = {param for name in names for param in model.get_submodule(name).parameters()}
    parts = [
        {
            **group,
            "params": [param for param in group["params"] if (param in head) is of_head],
            **own,
        }
        for of_head, own in ((False, {}), (True, {"lr": lr}))
        for group in groups
    ]
    return [part for part in parts if part["params"]]


def _timms(
    config: TimmOptimizerConfig, groups: list[dict[str, Any]], lr: float, *, fused: bool
) -> Optimizer:
    name = config.name.lower()
    known = [str(optimizer) for optimizer in list_optimizers()]
    if name.removeprefix(_LOOKAHEAD) not in known:
        raise UserError(
            f"optimizer.name is {config.name!r}; allowed: sgd, adam, adamw, adam8bit, adam4bit, "
            f"adamfp8, the same with a w (adamw8bit), or one of timm's"
            f"{closest(name, known)}"
        )
    info = get_optimizer_info(name.removeprefix(_LOOKAHEAD))
    if info.second_order:
        raise UserError(
            f"optimizer.name is {config.name!r}, which needs second derivatives; "
            "write one that does not, such as adamw"
        )
    extra = {"fused": True} if fused and "fused" in _parameters(info.opt_class) else {}
    settings = {"lr": lr, "weight_decay": config.weight_decay, **extra, **config.args}
    try:
        if config.args:
            _try_out(name, settings)
        built: Optimizer = create_optimizer_v2(groups, name, **settings)
    except ImportError as error:
        raise UserError(
            f"optimizer {config.name!r} needs {error.name}; write pip install {error.name}"
        ) from error
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise UserError(
            f"optimizer {config.name!r} cannot be built with args {config.args}: {reason(error)}"
        ) from error
    return built


def _try_out(name: str, settings: dict[str, Any]) -> None:
    """Take a step on a dummy parameter, because many arguments are checked only in a step."""
    param = nn.Parameter(torch.zeros(2, 2))
    param.grad = torch.zeros_like(param)
    create_optimizer_v2([{"params": [param]}], name, **settings).step()


def _parameters(kind: Any) -> frozenset[str]:
    if isinstance(kind, str):  # a class that timm imports only when it builds the optimizer
        return frozenset()
    return frozenset(inspect.signature(kind).parameters)
