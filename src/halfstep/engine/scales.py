"""The loss scales of one engine: a shared scale, and one for each `loss_id`.

Gradients are unscaled by the scale that they were computed with. So when a step changes the shared
scale, gradients in the open window of another optimizer are multiplied by the same ratio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from halfstep import step_observer
from halfstep.engine.processes.shards import local
from halfstep.kernels import gradients
from halfstep.mechanisms.loss_scale.scaler import LossScaler

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from halfstep.engine.window.window import Window
    from halfstep.loss_scale import LossScale

SHARED = None
"""The key of the shared scale, which all losses without a `loss_id` use."""


class ScaleUpdate(NamedTuple):
    """One loss scale after a step: its key, its scaler, and the found_inf of its gradients."""

    loss_id: Hashable
    scaler: LossScaler
    found_inf: torch.Tensor


class LossScales:
    """All loss scales of one engine.

    Args:
        settings: How each scale starts, grows and backs off; None switches loss scaling off.
        device: Device of the scales.

    Attributes:
        scalers: The loss scalers by `loss_id`; the shared one has the key None.
    """

    def __init__(self, settings: LossScale | None, device: torch.device) -> None:
        self._settings = settings
        self._device = device
        self.scalers: dict[Hashable, LossScaler] = {}
        if settings:
            self._add(SHARED)

    def __bool__(self) -> bool:
        return self._settings is not None

    def may_collapse(self, *, ahead: int) -> bool:
        """Tell whether a non-finite gradient in the next step may collapse a loss scale.

        Args:
            ahead: Number of the last steps whose outcome the host does not know yet.
        """
        return any(scaler.may_collapse(ahead=ahead) for scaler in self.scalers.values())

    @property
    def shared(self) -> LossScaler | None:
        """The shared loss scaler; None without loss scaling."""
        return self.scalers.get(SHARED)

    def backward_apart(
        self,
        loss: torch.Tensor,
        windows: Sequence[Window],
        loss_id: Hashable,
        *,
        inputs: list[torch.Tensor] | None,
        retain_graph: bool,
    ) -> None:
        """Run the backward of a loss with a scale of its own; its gradients go to `true_grads`.

        Args:
            loss: The loss, already weighted for its window.
            windows: Windows whose parameters the loss may reach.
            loss_id: Key of the loss's own scale.
            inputs: The parameters to which the backward is limited; None for no limit.
            retain_graph: Whether to keep the graph for another loss.
        """
        self._add(loss_id)
        scaler = self.scalers[loss_id]
        kept = [(param, param.grad) for window in windows for param in window.params]
        for param, _ in kept:
            param.grad = None
        scaled = self.multiplied(loss, scaler)
        torch.autograd.backward(scaled, retain_graph=retain_graph, inputs=inputs)
        for window in windows:
            self._take_apart(window, loss_id)
        for param, grad in kept:
            param.grad = None
            if grad is not None:
                gradients.put(param, grad)

    def unscale(self, window: Window) -> None:
        """Unscale the gradients of a closing window, and add those of losses with their own scale.

        Args:
            window: The window, with its gradients collected in fp32 or wider.
        """
        scaler, weight = self.scalers[SHARED], window.remaining_weight
        window.loss_scale = scaler.scale.clone()
        if window.grads:
            found = torch.zeros((), device=self._device)
            inverse = scaler.inverse() if weight == 1.0 else scaler.inverse() * weight
            gradients.unscale(window.grads, inverse, found)
            window.found = {SHARED: found, **window.found}
        for param, grad in window.true_grads.items():
            if weight != 1.0:
                grad.mul_(weight)
            gradients.put(param, grad if param.grad is None else param.grad.add_(grad))
        if window.true_grads:
            window.collect(widens=False)

    def update(self, closing: Sequence[Window], waiting: Sequence[Window]) -> list[ScaleUpdate]:
        """Update each loss scale with which gradients of a step were computed, once.

        Args:
            closing: Windows that close in the step.
            waiting: Windows that stay open; their gradients are adapted to the new scale.

        Returns:
            One entry for each scale that was updated.
        """
        found: dict[Hashable, torch.Tensor] = {}
        for window in closing:
            for loss_id, own in window.found.items():
                if loss_id in self.scalers and loss_id not in window.counted:
                    before = found.get(loss_id)
                    found[loss_id] = own if before is None else torch.maximum(before, own)
        updates: list[ScaleUpdate] = []
        for loss_id, found_inf in found.items():
            scaler = self.scalers[loss_id]
            adapts = bool(waiting) and loss_id is SHARED and scaler.settings.dynamic
            before_update = scaler.scale.clone() if adapts else None
            scaler.update(found_inf)
            if loss_id is SHARED:
                step_observer.active.updates(scaler)
            for window in waiting:
                if loss_id in window.found:
                    window.counted.add(loss_id)  # the same loss: count its found_inf once
            if before_update is not None:
                for window in waiting:
                    _rescale(window, scaler.scale / before_update)
            updates.append(ScaleUpdate(loss_id, scaler, found_inf))
        return updates

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all scales."""
        return {
            "scalers": [[loss_id, scaler.state_dict()] for loss_id, scaler in self.scalers.items()]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the states that `state_dict` returned."""
        for loss_id, scaler_state in state["scalers"]:
            self._add(loss_id)
            self.scalers[loss_id].load_state_dict(scaler_state)
            step_observer.active.restores(self.scalers[loss_id])

    def multiplied(self, loss: torch.Tensor, scaler: LossScaler) -> torch.Tensor:
        """Return a loss multiplied by one of the scales, and report it to the observer."""
        scaled = scaler.apply(loss)
        step_observer.active.scales(self.shared, scaler, loss, scaled)
        return scaled

    def _add(self, loss_id: Hashable) -> None:
        """Create the scaler of a loss, unless it exists."""
        if loss_id not in self.scalers:
            assert self._settings is not None
            self.scalers[loss_id] = LossScaler(self._settings, self._device)

    def _take_apart(self, window: Window, loss_id: Hashable) -> None:
        """Unscale the gradients in `.grad` of a loss with its own scale; add to `true_grads`."""
        reached = [param for param in window.params if param.grad is not None]
        grads = [p.grad.to(gradients.wide(p.grad.dtype)) for p in reached if p.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise TypeError(
                f"loss_id={loss_id!r} keeps gradients separate, which does not work for sparse "
                "gradients; "
                "leave loss_id out, or write sparse=False in the embedding"
            )
        found = torch.zeros((), device=self._device)
        if grads:
            inverse = self.scalers[loss_id].inverse()
            gradients.unscale([local(grad) for grad in grads], inverse, found)
        window.counted.discard(loss_id)
        before = window.found.get(loss_id)
        window.found[loss_id] = found if before is None else torch.maximum(before, found)
        for param, grad in zip(reached, grads, strict=True):
            held = window.true_grads.get(param)
            window.true_grads[param] = grad if held is None else held.add_(grad)


def _rescale(window: Window, ratio: torch.Tensor) -> None:
    """Multiply the gradients of an open window by the ratio of the new scale to the old one."""
    window.hide_true_grads()
    gradients.widen(window.params)
    for grad in window.dense_gradients(widens=False):
        grad.mul_(ratio.to(grad.device))
    window.show_true_grads()
    window.mark_gradients()
