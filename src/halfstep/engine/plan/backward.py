"""A backward pass: the gradient that it starts from, the preparation and the records after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from halfstep import step_observer
from halfstep.engine.parallel.fsdp import refuse_limited_backward
from halfstep.engine.passes.root import RootGradient, is_bare
from halfstep.engine.processes.shards import is_sharded
from halfstep.engine.selection import trained

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from halfstep.engine.assemble import Assembly
    from halfstep.engine.passes.weights import MicroBatchWeights, Weight
    from halfstep.engine.window.window import Window


class BackwardPasses:
    """Runs the backward passes of an engine, and accumulates their gradients in its windows.

    Args:
        assembly: The engine's parts.
        weights: The weights of micro-batches.
    """

    def __init__(self, assembly: Assembly, weights: MicroBatchWeights) -> None:
        self._assembly, self._weights = assembly, weights
        self._hooks, self._scales = assembly.hooks.before_backward, assembly.scales
        self._scaled = bool(assembly.scales)
        self._root = RootGradient()

    def accumulate(
        self,
        loss: torch.Tensor,
        windows: Sequence[Window],
        loss_id: Hashable,
        samples: int | None,
        *,
        limited: bool,
        retain_graph: bool,
    ) -> None:
        """Run the backward of a loss and accumulate its gradients.

        After an error, such as out of memory, the gradients of the windows are dropped, because
        only some were accumulated.

        Args:
            loss: The mean loss of the micro-batch, a scalar.
            windows: Windows whose parameters the loss may reach.
            loss_id: Key of the loss's own scale; None for the shared scale.
            samples: Number of samples in the micro-batch; None if samples are not counted.
            limited: Whether to compute gradients only for the parameters of `windows`.
            retain_graph: Whether to keep the graph for another loss.

        Raises:
            RuntimeError: If `samples` is given for only some micro-batches of a window.
        """
        assembly = self._assembly
        weight = self._weights.count(loss, samples, windows, assembly.ranks)
        try:
            inputs = _inputs(windows, of_all=assembly.windows) if limited else None
            apart = self._scaled and loss_id is not None
            loss, root = self._begun(loss, weight, windows, apart=apart)
            for window in windows:
                if window.true_grads:
                    window.hide_true_grads()
                for before_backward in self._hooks:
                    before_backward(window.params, again=window.backwards > 0)
            replicas, whole = assembly.replicas, loss_id is None
            reducing = (
                replicas.reducing(windows, inputs, whole=whole) if replicas.expected else None
            )
            with reducing or step_observer.NOTHING:
                if apart:
                    self._scales.backward_apart(
                        loss, windows, loss_id, inputs=inputs, retain_graph=retain_graph
                    )
                else:
                    torch.autograd.backward(loss, root, retain_graph=retain_graph, inputs=inputs)
        except BaseException:
            assembly.refresh()
            assembly.zero_grad(windows)
            raise
        for window in windows:
            window.after_backward(scaled=self._scaled)

    def _begun(
        self, loss: torch.Tensor, weight: Weight | None, windows: Sequence[Window], *, apart: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return where a backward starts: a tensor and its gradient, None for 1.

        The gradient is the product of the weight and the loss scale. An observer that listens, and
        a loss that needs another class or shape of the gradient, get the product with the loss
        itself; a loss with a scale of its own (`apart`) gets that later.
        """
        scaler, observer = self._scales.shared, step_observer.active
        if not (apart or observer.listens) and is_bare(loss):
            return loss, self._root.of(loss, scaler.scale if scaler else None, weight)
        if weight is not None:
            loss = weight.applied(loss)
        for window in windows:
            observer.accumulates(window.optimizer, window.params)
        if scaler is not None and not apart:
            loss = self._scales.multiplied(loss, scaler)
        return loss, None


def _inputs(windows: Sequence[Window], *, of_all: Sequence[Window]) -> list[torch.Tensor] | None:
    """Return the parameters to which a backward is limited; None if FSDP2 takes no limit."""
    inputs = trained(windows)
    if any(map(is_sharded, inputs)):
        refuse_limited_backward(of_all=len(windows) == len(of_all))
        return None
    return inputs
