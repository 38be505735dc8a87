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
from torch.nn.modules.batchnorm import _NormBase

from halfstep import step_observer
from halfstep.mechanisms.technique import as_function
from halfstep.optim.foreach import by_format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.utils.hooks import RemovableHandle


class RunningStatistics:
    """Copies and restores the running statistics of one model.

    The copies of all buffers of a format are parts of one tensor. A copy of each buffer would
    launch a hundred kernels on a GPU.

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
        self._copies: list[_Copies] = []
        self._is_saved = False
        self._in_step = False
        self._handles: list[RemovableHandle] = []
        self._of_layers: list[RemovableHandle] = []
        if layers:
            # The hook of the model is for models with compiled layers. `step_going_on` is for
            # models that are compiled as a whole, so that no hook runs. The hooks of the layers are
            # for callers that call parts of the model outside of it. They cost 1 % of a small
            # step, so they go when `step_going_on` is first entered.
            hook = as_function(self._before_forward)
            self._handles.append(model.register_forward_pre_hook(hook))
            self._of_layers = [layer.register_forward_pre_hook(hook) for layer in layers]
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
        if torch.compiler.is_compiling() or self._is_saved or not module.training:
            return
        if torch.is_grad_enabled() or self._in_step:
            self._save()

    def _save(self) -> None:
        if self._is_saved:
            return
        with step_observer.active.work():
            if self._copies:
                for copies in self._copies:
                    copies.take()
            else:
                self._copies = [_Copies(alike) for alike in by_format(self._buffers)]
        self._is_saved = True

    @contextmanager
    def step_going_on(self) -> Iterator[None]:
        """Let each training forward pass inside the context make the copy, also without gradients.

        If a norm layer is in training mode, the copy is made at once.
        """
        before = self.begin()
        try:
            yield
        finally:
            self.end(before)

    def begin(self) -> bool:
        """Enter the context `step_going_on`; return an argument for `end`."""
        before, self._in_step = self._in_step, True
        if self._of_layers:
            self._remove(self._of_layers)
        # Compiled code does not run these hooks, so the copy must exist before it starts.
        for layer in self._layers:
            if layer.training:
                self._save()
                break
        return before

    def end(self, before: bool) -> None:
        """Leave the context `step_going_on`."""
        self._in_step = before

    def belong_to(self, params: Iterable[torch.Tensor]) -> bool:
        """Tell whether the model has any of `params`."""
        return not self._params.isdisjoint(params)

    def settle(self, found_inf: torch.Tensor) -> None:
        """End a window: restore the statistics if `found_inf`, a scalar on any device, is not 0."""
        if not self._is_saved:
            return
        for copies in self._copies:
            then, alike = copies.whole, copies.buffers
            settled = torch.where(found_inf.to(then.device) > 0, then, copies.present())
            # .data keeps the version counters, which a graph that still waits for its backward
            # checks.
            torch._foreach_copy_([buffer.data for buffer in alike], _parted(settled, alike))
        self._is_saved = False

    def replayed(self, *, is_saved: bool) -> None:
        """Note whether a replayed micro-step has left a copy that its window still needs."""
        self._is_saved = is_saved

    def forget(self) -> None:
        """End a window whose gradients are dropped, or whose statistics a loaded state replaced."""
        self._is_saved = False

    def state_dict(self) -> list[torch.Tensor] | None:
        """Return the copy of the statistics that an open window has, or None."""
        if not self._is_saved:
            return None
        copy_of = {
            buffer: part
            for copies in self._copies
            for buffer, part in zip(copies.buffers, copies.parts, strict=True)
        }
        return [copy_of[buffer].clone() for buffer in self._buffers]

    def load_state_dict(self, saved: list[torch.Tensor] | None) -> None:
        """Load the copy that `state_dict` returned."""
        self._is_saved = False
        if saved is not None:
            self._save()
            copy_of = dict(zip(self._buffers, saved, strict=False))
            for copies in self._copies:
                for buffer, part in zip(copies.buffers, copies.parts, strict=True):
                    part.copy_(copy_of[buffer])

    def close(self) -> None:
        """Remove the hooks."""
        self._remove(self._handles)
        self._remove(self._of_layers)

    @staticmethod
    def _remove(handles: list[RemovableHandle]) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()


class _Copies:
    """Copies of buffers of one format, which every window overwrites.

    Attributes:
        buffers: The buffers.
        whole: Their copies as one tensor, shape (elements,).
        parts: The copies as views of `whole`, in the shapes of the buffers.
    """

    def __init__(self, buffers: list[torch.Tensor]) -> None:
        self.buffers = buffers
        # Means and variances, or counts of batches. A view of each would take longer than the copy.
        dimensions = {tensor.dim() for tensor in buffers}
        self._join: Callable[..., torch.Tensor] = _joined
        if dimensions in ({0}, {1}):
            self._join = torch.stack if dimensions == {0} else torch.cat
        self.whole = self.present()
        self.parts = _parted(self.whole, buffers)

    def present(self) -> torch.Tensor:
        """Return the present values as one tensor, shape (elements,)."""
        return self._join(self.buffers)

    def take(self) -> None:
        """Copy the present values."""
        self._join(self.buffers, out=self.whole)


def _joined(tensors: list[torch.Tensor], *, out: torch.Tensor | None = None) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors], out=out)


def _parted(flat: torch.Tensor, buffers: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return views of `flat` in the shapes of the buffers."""
    parts = flat.split([buffer.numel() for buffer in buffers])
    return [part.view_as(buffer) for part, buffer in zip(parts, buffers, strict=True)]
