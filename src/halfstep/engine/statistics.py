"""BatchNorm's running statistics as they were before a window, for a step that is skipped.

A forward pass that overflows poisons running means and variances before anyone knows that its step
will be skipped (pytorch#115500). They are copied at the first training forward of a window and put
back in place, where the device decides whether they must be.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from halfstep import step_observer
from halfstep.optim.foreach import by_format
from halfstep.techniques.base import as_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.utils.hooks import RemovableHandle


class RunningStatistics:
    """Guard the running statistics of one model.

    A forward pass counts when it records gradients, or inside `engine.autocast()`: recomputing
    statistics under `torch.no_grad()` between steps is nobody's step.

    Args:
        model: The model, whose norm layers may come and go no more.
        wrapper: Runs replicas of the model in threads, if anything does: the copy has to be there
            before any of them writes.
    """

    def __init__(self, model: nn.Module, wrapper: nn.Module | None = None) -> None:
        layers = [
            m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None
        ]
        self._params = frozenset(model.parameters())
        self._layers = layers
        self._buffers = [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
        self._saved: list[torch.Tensor] | None = None
        self._in_step = False
        self._handles: list[RemovableHandle] = []
        if layers:
            # The root's hook serves models with compiled layers, the layers' own those who call
            # parts of a model; `step_going_on` models that were compiled whole, hooks and all.
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
        """Whether the model has any."""
        return bool(self._layers)

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        counts = torch.is_grad_enabled() or self._in_step
        if not torch.compiler.is_compiling() and counts and module.training:
            self._save()

    def _save(self) -> None:
        if self._saved is None:
            with step_observer.active.work():
                self._saved = [buffer.clone() for buffer in self._buffers]

    @contextmanager
    def step_going_on(self) -> Iterator[None]:
        """Count every forward pass in training mode, whatever it records."""
        before, self._in_step = self._in_step, True
        # Compiled code runs no hook of ours, so the copy has to be there before it is entered.
        if any(layer.training for layer in self._layers):
            self._save()
        try:
            yield
        finally:
            self._in_step = before

    def belong_to(self, params: Iterable[torch.Tensor]) -> bool:
        """Tell whether they are those of a model that has any of `params`."""
        return not self._params.isdisjoint(params)

    def settle(self, found_inf: torch.Tensor) -> None:
        """End a window: put the statistics back if `found_inf`, a scalar on any device, is set."""
        if self._saved is None:
            return
        saved = dict(zip(self._buffers, self._saved, strict=True))
        for alike in by_format(self._buffers):  # a few kernels for all of them
            then = torch.cat([saved[buffer].flatten() for buffer in alike])
            now = torch.cat([buffer.flatten() for buffer in alike])
            settled = torch.where(found_inf.to(now.device) > 0, then, now)
            parts = settled.split([buffer.numel() for buffer in alike])
            shaped = [part.view_as(buffer) for part, buffer in zip(parts, alike, strict=True)]
            # .data: no graph that still waits for its backward is to notice.
            torch._foreach_copy_([buffer.data for buffer in alike], shaped)
        self._saved = None

    def forget(self) -> None:
        """End a window whose gradients are dropped, or whose statistics were loaded over."""
        self._saved = None

    def state_dict(self) -> list[torch.Tensor] | None:
        """Return the copy that an open window holds."""
        return self._saved

    def load_state_dict(self, saved: list[torch.Tensor] | None) -> None:
        """Take over the copy of an open window."""
        pairs = zip(saved or [], self._buffers, strict=False)
        self._saved = None if saved is None else [s.to(b.device, copy=True) for s, b in pairs]

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()
