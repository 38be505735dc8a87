"""Casts of models to half precision, except affine batch norm, which stays in fp32."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from halfstep.mechanisms.cpu_half import CpuHalf
from halfstep.mechanisms.params.technique import recast

_unused: deque[CpuHalf] = deque()


class tofp16(nn.Module):  # noqa: N801  # Apex's name
    """Casts its input to fp16."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # Apex's name
        """Return `input` in fp16."""
        return input.half()


class FP16Model(nn.Module):
    """A model in fp16, except affine batch norm, that casts its inputs to fp16.

    Args:
        network: The model, which is cast in place.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = convert_network(network, torch.half)
        hold_cpu_kernels(self)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the model on the inputs in fp16; the output is not cast."""
        return self.network(*(each.half() for each in inputs))


def BN_convert_float(module: nn.Module) -> nn.Module:  # noqa: N802  # Apex's name
    """Cast affine batch norm inside `module` to fp32, in place, and return `module`."""
    for each in module.modules():
        if _stays(each):
            convert_module(each, torch.float32)
    return module


def network_to_half(network: nn.Module) -> nn.Sequential:
    """Cast a model to fp16, except affine batch norm; return it after a layer that casts its input.

    The model is cast in place.
    """
    model = nn.Sequential(tofp16(), BN_convert_float(network.half()))
    hold_cpu_kernels(model)
    return model


def convert_module(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast the floating-point parameters and buffers of a module, without those of its children."""
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        if tensor.is_floating_point() and tensor.dtype != dtype:
            grad = tensor.grad if tensor.is_leaf else None
            recast(tensor, dtype)
            tensor.grad = None if grad is None else grad.to(dtype)
    if isinstance(module, nn.RNNBase):
        module.flatten_parameters()


def convert_network(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast a model in place, except affine batch norm, and return it."""
    for module in network.modules():
        if _stays(module):
            continue
        convert_module(module, dtype)
    return network


def hold_cpu_kernels(model: nn.Module) -> None:
    """Use the fast half-precision kernels on a CPU for as long as `model` exists."""
    release_cpu_kernels()
    kernels = CpuHalf(autocast=False)
    kernels.prepare([model], [])
    # The finalizer does not close the kernels itself: it may run while their lock is held.
    weakref.finalize(model, _unused.append, kernels).atexit = False


def release_cpu_kernels() -> None:
    """Close the kernels of models that no longer exist."""
    while _unused:
        _unused.popleft().close()


def _stays(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.affine
