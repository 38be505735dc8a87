"""One backward pass: who gets ready for its gradients, and who takes note of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep import step_observer
from halfstep.engine.parallel.fsdp import refuse_limited_backward
from halfstep.engine.parallel.shards import is_sharded
from halfstep.engine.selection import trained

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import torch

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.window import Window


def accumulate_gradients(
    assembly: Assembly,
    loss: torch.Tensor,
    windows: Sequence[Window],
    loss_id: Hashable,
    *,
    limited: bool,
    retain_graph: bool,
) -> None:
    """Run the backward of a loss and accumulate its gradients.

    Args:
        assembly: The engine's parts.
        loss: The loss, already weighted for its window.
        windows: Windows whose parameters it may reach.
        loss_id: Name of its own scale, or None for the shared one.
        limited: Whether it may reach no other parameters.
        retain_graph: Whether the graph is kept for another loss.
    """
    inputs = trained(windows) if limited else None
    if inputs and any(is_sharded(param) for param in inputs):
        refuse_limited_backward(of_all=len(windows) == len(assembly.windows))
        inputs = None
    for window in windows:
        step_observer.active.accumulates(window.optimizer, window.params)
        window.hide_true_grads()
        for technique in assembly.techniques:
            technique.before_backward(window.params, again=window.backwards > 0)
    reducing = assembly.replicas.before_backward(windows, inputs)
    done = False
    try:
        assembly.scales.backward(
            loss, windows, loss_id=loss_id, inputs=inputs, retain_graph=retain_graph
        )
        done = True
    finally:
        whole = done and loss_id is None
        assembly.replicas.after_backward(reducing, windows, whole=whole)
    for window in windows:
        window.after_backward(scaled=bool(assembly.scales))
