"""The loss scales of one engine: a shared one, and one for each loss that asked for its own.

Gradients are unscaled by the scale that they were made with: when a step changes it, those that
wait in the open window of another optimizer are multiplied by the same ratio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from halfstep.engine.gradients import dense_gradients
from halfstep.engine.parallel.shards import local
from halfstep.techniques import LossScaler
from halfstep.techniques.gradients import keep_grad, put_grad

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from halfstep.engine.slot import Slot
    from halfstep.loss_scale import LossScale

SHARED = None
"""The name of the scale of all losses that have none of their own."""


class LossScales:
    """All loss scales of one engine.

    Args:
        settings: How each of them starts, grows and backs off; None switches scaling off.
        device: Where they live.

    Attributes:
        scalers: Each scale by its name.
        found: Whether gradients made with each of them were not finite, since its last update.
    """

    def __init__(self, settings: LossScale | None, device: torch.device) -> None:
        self._settings = settings
        self._device = device
        self.found: dict[Hashable, torch.Tensor] = {}
        self.scalers: dict[Hashable, LossScaler] = {}
        if settings:
            self._scaler(SHARED)

    def __bool__(self) -> bool:
        return self._settings is not None

    @property
    def shared(self) -> LossScaler | None:
        """The shared scale; None when scaling is off."""
        return self.scalers.get(SHARED)

    def backward(
        self,
        loss: torch.Tensor,
        slots: Sequence[Slot],
        *,
        loss_id: Hashable,
        inputs: list[torch.Tensor] | None,
        retain_graph: bool,
    ) -> None:
        """Run the backward of a loss under its scale.

        Args:
            loss: The loss, already weighted for its window.
            slots: Those whose parameters it may reach.
            loss_id: Name of its own scale, or None for the shared one.
            inputs: The parameters that it is limited to, or None.
            retain_graph: Whether the graph is kept for another loss.
        """
        if not self or loss_id is SHARED:
            scaled = self.scalers[SHARED].apply(loss) if self else loss
            torch.autograd.backward(scaled, retain_graph=retain_graph, inputs=inputs)
            return
        scaler = self._scaler(loss_id)
        kept = [(param, param.grad) for slot in slots for param in slot.params]
        for param, _ in kept:
            param.grad = None
        torch.autograd.backward(scaler.apply(loss), retain_graph=retain_graph, inputs=inputs)
        for slot in slots:
            self._take_apart(slot, loss_id, scaler)
        for param, grad in kept:
            param.grad = None
            if grad is not None:
                put_grad(param, grad)

    def unscale(self, slot: Slot, factor: float) -> torch.Tensor:
        """Turn the gradients of a closing window into true ones, in fp32 at least.

        Args:
            slot: Whose window closes; half gradients were widened before.
            factor: Weight of the window, when it is not the one its losses were divided by.

        Returns:
            fp32 scalar: 1 if a gradient was not finite, else 0.
        """
        found = torch.zeros((), device=self._device)
        shared = dense_gradients(slot.params)
        if shared:
            self.scalers[SHARED].unscale_(shared, found, factor=factor)
            self._keep(SHARED, found)
        for param, grad in slot.true_grads.items():
            if factor != 1.0:
                grad.mul_(factor)
            put_grad(param, grad if param.grad is None else param.grad.add_(grad))
        for loss_id, own in slot.found.items():
            if loss_id not in slot.counted:
                self._keep(loss_id, own)
            found = torch.maximum(found, own)
        return found

    def update(self, open_slots: Sequence[Slot]) -> list[tuple[Hashable, LossScaler, torch.Tensor]]:
        """Update each scale that gradients of a step were made with, once.

        Args:
            open_slots: Those whose windows go on, with gradients that a new scale must fit.

        Returns:
            What was updated: name, scale, and what was found.
        """
        updated = []
        for loss_id, found in self.found.items():
            scaler = self.scalers[loss_id]
            before = scaler.scale.clone()
            scaler.update(found)
            for slot in open_slots:
                if loss_id in slot.found:
                    slot.counted.add(loss_id)  # the same loss reached it, and is not found twice
            if loss_id is SHARED and scaler.settings.dynamic:
                for slot in open_slots:
                    _rescale(slot, scaler.scale / before)
            updated.append((loss_id, scaler, found))
        self.found = {}
        return updated

    def state_dict(self) -> dict[str, Any]:
        """Return all scales."""
        return {
            "scalers": [[loss_id, scaler.state_dict()] for loss_id, scaler in self.scalers.items()]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        for loss_id, scaler_state in state["scalers"]:
            self._scaler(loss_id).load_state_dict(scaler_state)

    def _scaler(self, loss_id: Hashable) -> LossScaler:
        if loss_id not in self.scalers:
            assert self._settings is not None
            self.scalers[loss_id] = LossScaler(self._settings, self._device)
        return self.scalers[loss_id]

    def _keep(self, loss_id: Hashable, found: torch.Tensor) -> None:
        before = self.found.get(loss_id)
        self.found[loss_id] = found.clone() if before is None else torch.maximum(before, found)

    def _take_apart(self, slot: Slot, loss_id: Hashable, scaler: LossScaler) -> None:
        reached = [param for param in slot.params if param.grad is not None]
        grads = [p.grad.to(_wide(p.grad)) for p in reached if p.grad is not None]
        for grad in grads:
            if grad.is_sparse:
                raise TypeError(
                    f"loss_id={loss_id!r} keeps gradients apart, which sparse ones cannot be; "
                    "leave loss_id out, or write sparse=False in the embedding"
                )
        found = torch.zeros((), device=self._device)
        if grads:
            scaler.unscale_([local(grad) for grad in grads], found)
        slot.counted.discard(loss_id)
        before = slot.found.get(loss_id)
        slot.found[loss_id] = found if before is None else torch.maximum(before, found)
        for param, grad in zip(reached, grads, strict=True):
            held = slot.true_grads.get(param)
            slot.true_grads[param] = grad if held is None else held.add_(grad)


def _rescale(slot: Slot, ratio: torch.Tensor) -> None:
    slot.hide_true_grads()
    for param in slot.params:
        if param.grad is not None:
            keep_grad(param, _wide(param.grad))
    for grad in dense_gradients(slot.params):
        grad.mul_(ratio.to(grad.device))
    slot.show_true_grads()
    slot.mark_gradients()


def _wide(grad: torch.Tensor) -> torch.dtype:
    return torch.float64 if grad.dtype == torch.float64 else torch.float32
