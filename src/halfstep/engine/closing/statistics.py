"""Restores BatchNorm's running statistics when a step is skipped.

A forward pass that overflows makes running means and variances non-finite before it is known that
its step will be skipped (pytorch#115500). So the first training forward pass of a window copies
them. At the end of the window they are restored in place if a gradient is non-finite; the device
decides this without waiting for the host.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules.batchnorm import _NormBase

from halfstep import step_observer
from halfstep.mechanisms.technique import as_function
from halfstep.optim.foreach import by_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.utils.hooks import RemovableHandle


class RunningStatistics:
    """Copies and restores the running statistics of one model.

    The buffers of a format are copied as one tensor. A copy of each buffer would launch a hundred
    kernels on a GPU.

    A forward pass in training mode makes the copy if gradients are enabled, or inside
    `engine.autocast()`. A forward pass under `torch.no_grad()` between steps does not: the caller
    recomputes the statistics, and this belongs to no step.

    Args:
        model: The model. Norm layers must not be added to it or removed from it later.
        wrapper: The wrapper that runs replicas of the model in threads, or None. Its hook makes the
            copy before any thread changes the statistics.
    """

    def __init__(self, model: nn.Module, wrapper: nn.Module | None = None) -> None:
        layers = [
            m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None
        ]
        self._params = frozenset(model.parameters())
        self._layers = layers
        self._buffers = [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
        self._saved: list[tuple[list[torch.Tensor], torch.Tensor]] | None = None
        self._in_step = False
        self._handles: list[RemovableHandle] = []
        if layers:
            # The hook of the model is for models with compiled layers. The hooks of the layers are
            # for callers that call parts of the model. `step_going_on` is for models that are
            # compiled as a whole, so that no hook runs.
            for module in (model, *layers):
                hook = as_function(self._before_forward)
                self._handles.append(module.register_forward_pre_hook(hook))
            if wrapper is not None:
                ahead = as_function(lambda *_: self._before_forward(model, ()))
                self._handles.append(wrapper.register_forward_pre_hook(ahead))
            forget = as_function(lambda *_: self.forget())
            self._handles.append(model.register_load_state_dict_post_hook(forget))

    @property
    def move(self) -> bool:
        """Whether the model has running statistics."""
        return bool(self._layers)

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        if self._saved is not None:
            return
        counts = torch.is_grad_enabled() or self._in_step
        if not torch.compiler.is_compiling() and counts and module.training:
            self._save()

    def _save(self) -> None:
        if self._saved is None:
            with step_observer.active.work():
                self._saved = [(alike, _flat(alike)) for alike in by_format(self._buffers)]

    @contextmanager
    def step_going_on(self) -> Iterator[None]:
        """Let each training forward pass inside the context make the copy, also without gradients.

        If a norm layer is in training mode, the copy is made at once.
        """
        before, self._in_step = self._in_step, True
        # Compiled code does not run these hooks, so the copy must exist before it starts.
        if any(layer.training for layer in self._layers):
            self._save()
        try:
            yield
        finally:
            self._in_step = before

    def belong_to(self, params: Iterable[torch.Tensor]) -> bool:
        """Tell whether the model has any of `params`."""
        return not self._params.isdisjoint(params)

    def settle(self, found_inf: torch.Tensor) -> None:
        """End a window: restore the statistics if `found_inf`, a scalar on any device, is not 0."""
        if self._saved is None:
            return
        for alike, then in self._saved:
            settled = torch.where(found_inf.to(then.device) > 0, then, _flat(alike))
            # A graph that still waits for its backward checks the version counters.
            with _unsafe_preserve_version_counter(tuple(alike)):
                torch._foreach_copy_(alike, _parted(settled, alike))
        self._saved = None

    def forget(self) -> None:
        """End a window whose gradients are dropped, or whose statistics a loaded state replaced."""
        self._saved = None

    def state_dict(self) -> list[torch.Tensor] | None:
        """Return the copy of the statistics that an open window has, or None."""
        if self._saved is None:
            return None
        copies = {
            buffer: part
            for alike, saved in self._saved
            for buffer, part in zip(alike, _parted(saved, alike), strict=True)
        }
        return [copies[buffer] for buffer in self._buffers]

    def load_state_dict(self, saved: list[torch.Tensor] | None) -> None:
        """Load the copy that `state_dict` returned."""
        self._saved = None
        if saved is not None:
            copies = dict(zip(self._buffers, saved, strict=False))
            self._saved = [
                (alike, _flat([copies[buffer].to(buffer.device) for buffer in alike]))
                for alike in by_format([*copies])
            ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all elements of tensors of one format as a new tensor, shape (elements,)."""
    if {each.dim() for each in tensors} == {0}:
        return torch.stack([*tensors])
    return torch.cat([each if each.dim() == 1 else each.flatten() for each in tensors])


def _parted(flat: torch.Tensor, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of `flat` in the shapes of the buffers."""
    if {buffer.dim() for buffer in buffers} == {0}:
        return [*flat.unbind()]
    parts = flat.split([buffer.numel() for buffer in buffers])
    return [
        part if buffer.dim() == 1 else part.view_as(buffer)
        for part, buffer in zip(parts, buffers, strict=True)
    ]
