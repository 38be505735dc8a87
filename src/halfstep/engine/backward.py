"""One backward pass: who gets ready for its gradients, and who takes note of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.engine.misuse import refuse_sharded_inputs
from halfstep.engine.parallel.shards import is_sharded
from halfstep.engine.selection import trained

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import torch

    from halfstep.engine.slot import Slot
    from halfstep.engine.update import Update


def accumulate_gradients(
    parts: Update,
    loss: torch.Tensor,
    slots: Sequence[Slot],
    loss_id: Hashable,
    *,
    limited: bool,
    retain_graph: bool,
) -> None:
    """Run the backward of a loss and accumulate its gradients.

    Args:
        parts: The engine's parts.
        loss: The loss, already weighted for its window.
        slots: Those whose parameters it may reach.
        loss_id: Name of its own scale, or None for the shared one.
        limited: Whether it may reach no others.
        retain_graph: Whether the graph is kept for another loss.
    """
    inputs = trained(slots) if limited else None
    if inputs and any(is_sharded(param) for param in inputs):
        refuse_sharded_inputs(of_all=len(slots) == len(parts.slots))
        inputs = None
    for slot in slots:
        slot.hide_true_grads()
        for technique in parts.techniques:
            technique.before_backward(slot.params, again=slot.backwards > 0)
    reducing = parts.replicas.before_backward(slots, inputs)
    done = False
    try:
        parts.scales.backward(
            loss, slots, loss_id=loss_id, inputs=inputs, retain_graph=retain_graph
        )
        done = True
    finally:
        whole = done and loss_id is None
        parts.replicas.after_backward(reducing, slots, whole=whole)
    for slot in slots:
        slot.after_backward(scaled=bool(parts.scales))
