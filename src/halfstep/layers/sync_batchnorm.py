"""Batch norm over the batches of all processes, on a CPU too.

torch's `SyncBatchNorm` has kernels for accelerators and refuses CPU tensors. This module computes
the same numbers with differentiable sums over the processes. So a program for many devices runs,
and can be tested, on a machine without any.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all processes: torch's kernels on a GPU, sums on a CPU.

    The input has shape (n, c, ...) and any floating-point format; the statistics are in fp32 or
    wider. Batches may have different sizes on different processes.

    It does not inherit from torch's SyncBatchNorm, because `DistributedDataParallel` refuses that
    class on a CPU.

    Args:
        num_features: Number of channels.
        eps: Added to the variance.
        momentum: Weight of a batch in the running statistics; None for the mean over all batches.
        affine: Whether the layer has a weight and a bias.
        track_running_stats: Whether the layer keeps running statistics.
        process_group: The processes that share statistics; all processes by default.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        *,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_group = process_group

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  (torch's name)
        if input.ndim < 2:
            raise ValueError(
                f"SyncBatchNorm was given shape {tuple(input.shape)}; allowed: (n, c, ...)"
            )

    def _check_non_zero_input_channels(self, input: torch.Tensor) -> None:  # noqa: A002
        """Allow any number of channels; torch's `SyncBatchNorm.forward` calls this method."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  (torch's name)
        """Normalize by the statistics of all processes, or in evaluation by running statistics."""
        if input.device.type != "cpu" or not self.training:
            own = cast("nn.SyncBatchNorm", self)  # this class has all attributes that forward reads
            return nn.SyncBatchNorm.forward(own, input)
        self._check_input_dim(input)
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        others = [dim for dim in range(wide.ndim) if dim != 1]
        count = wide.new_tensor(wide.numel() // wide.shape[1])
        sums = torch.cat([wide.sum(others), count[None]])
        sums = self._over_processes(sums)
        total = sums[-1].detach()
        if float(total) <= 1:
            raise ValueError(
                f"expected more than 1 value per channel when training, got {tuple(input.shape)}"
            )
        shape = [1, -1] + [1] * (wide.ndim - 2)
        mean = sums[:-1] / total
        centred = wide - mean.view(shape)
        variance = self._over_processes(centred.square().sum(others)) / total
        self._track(mean.detach(), variance.detach(), total)
        normalized = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            normalized = normalized * self.weight.view(shape) + self.bias.view(shape)
        return normalized.to(input.dtype)

    def _over_processes(self, values: torch.Tensor) -> torch.Tensor:
        if not (dist.is_available() and dist.is_initialized()):
            return values
        total: torch.Tensor = _SumOverProcesses.apply(values, self.process_group)
        return total

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Update the running statistics with those of a batch of `count` values per channel."""
        if not self.track_running_stats:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), weight)


class _SumOverProcesses(torch.autograd.Function):
    """Sums a tensor over the processes; the backward sums the gradients over the processes.

    This map is linear and equal to its transpose, so the backward is the same sum.
    """

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        """Return the sum, the same on every process of `group`."""
        ctx.group = group
        total = values.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the sum of the gradients over the processes."""
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


def convert(
    module: nn.Module,
    process_group: Any = None,
    *,
    layer: type[SyncBatchNorm] = SyncBatchNorm,
    **settings: Any,
) -> nn.Module:
    """Replace every batch norm of a model; parameters and buffers stay the same objects.

    Args:
        module: The model, which is changed in place unless it is itself a batch norm.
        process_group: The processes that share statistics; all processes by default.
        layer: The class of the new layers.
        settings: Further arguments of `layer`.

    Returns:
        The model, or its replacement if the model is itself a batch norm.

    Raises:
        TypeError: If a subclass of a batch norm overrides `forward` in an unknown way.
    """
    replacement = module
    if isinstance(module, _BatchNorm) and not isinstance(module, _InstanceNorm):
        replacement = layer(
            module.num_features,
            module.eps,
            module.momentum,
            affine=module.affine,
            track_running_stats=module.track_running_stats,
            process_group=process_group,
            **settings,
        )
        replacement.weight, replacement.bias = module.weight, module.bias
        replacement.running_mean, replacement.running_var = module.running_mean, module.running_var
        replacement.num_batches_tracked = module.num_batches_tracked
        replacement.training = module.training
        if activates(module):
            replacement.register_forward_hook(drop_and_act)
    for name, child in module.named_children():
        replacement.add_module(name, convert(child, process_group, layer=layer, **settings))
    return replacement


def synchronize_batchnorm(model: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    """Synchronize every batch norm across processes, with torch's layer where possible.

    Args:
        model: The model to change in place; its parameters stay the same objects.
        group: The processes that share statistics; all processes by default.

    Returns:
        The model, or its replacement if the model is itself a batch norm.

    Raises:
        TypeError: If a subclass of a batch norm overrides `forward` in an unknown way.
    """
    if next(model.parameters()).device.type == "cpu":
        return convert(model, group)
    fused = [name for name, layer in model.named_modules() if activates(layer)]
    synchronized: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
    for name in fused:
        synchronized.get_submodule(name).register_forward_hook(drop_and_act)
    return synchronized


def activates(layer: nn.Module) -> bool:
    """Tell whether a layer is a batch norm with dropout and activation, as timm's BatchNormAct2d.

    Raises:
        TypeError: If a batch norm overrides `forward` in another way.
    """
    if not isinstance(layer, _BatchNorm) or isinstance(layer, _InstanceNorm):
        return False
    kinds = (_BatchNorm, nn.SyncBatchNorm, SyncBatchNorm)
    if any(type(layer).forward is kind.forward for kind in kinds):
        return False
    if isinstance(getattr(layer, "drop", None), nn.Module) and isinstance(
        getattr(layer, "act", None), nn.Module
    ):
        return True
    raise TypeError(
        f"{type(layer).__name__} is a batch norm with its own forward, which sync_batchnorm would "
        "replace; write sync_batchnorm=False, or synchronize it in the model"
    )


def drop_and_act(layer: Any, _: Any, normalized: torch.Tensor) -> torch.Tensor:
    """Apply the dropout and activation of a fused batch norm: a forward hook of its replacement."""
    activated: torch.Tensor = layer.act(layer.drop(normalized))
    return activated
