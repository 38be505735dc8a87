"""One backward pass, with the preparation before it and the records after it."""

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
        windows: Windows whose parameters the loss may reach.
        loss_id: Key of the loss's own scale; None for the shared scale.
        limited: Whether to compute gradients only for the parameters of `windows`.
        retain_graph: Whether to keep the graph for another loss.
    """
    inputs = trained(windows) if limited else None
    if inputs and any(is_sharded(param) for param in inputs):
        refuse_limited_backward(of_all=len(windows) == len(assembly.windows))
        inputs = None
    observer, hooks, scales = step_observer.active, assembly.hooks, assembly.scales
    for window in windows:
        observer.accumulates(window.optimizer, window.params)
        window.hide_true_grads()
        for before_backward in hooks.before_backward:
            before_backward(window.params, again=window.backwards > 0)
    if assembly.replicas.expected:
        with assembly.replicas.reducing(windows, inputs, whole=loss_id is None):
            scales.backward(loss, windows, loss_id, inputs=inputs, retain_graph=retain_graph)
    else:
        scales.backward(loss, windows, loss_id, inputs=inputs, retain_graph=retain_graph)
    for window in windows:
        window.after_backward(scaled=bool(scales))
