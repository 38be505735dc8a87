"""The sampled rows of one call of a model, which `pairs`, `classes` and `inputs` compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import torch

    from halfstep.doctor.record.sites import Mark


@dataclass(slots=True, eq=False)
class Rows:
    """Samples of the rows of one call of a model.

    Attributes:
        step: Number of steps before the call.
        optimizers: Number of optimizers at that time.
        model: Number of the model.
        mark: The line of the call.
        length: Number of rows of the batch.
        inputs: For each tensor of inputs, elements of its first rows, shape (rows, elements).
        alone: Whether the call has only one tensor of inputs.
        whole: Whether all tensors of the call are among the inputs.
        loaded: The places of the inputs that a data loader gave, if there are several.
        width: Number of elements of a row of the first tensor.
        training: Whether the model was in training mode.
        targets: Elements of the rows of the targets; None before a loss is computed.
        dims: Number of dimensions of the targets.
        loss: The line of the loss.
        source: Number of the pass over a data loader that gave the last batch; -1 for none.
        is_loaded: Whether a data loader gave the targets.
        leads: Whether it is the first call of a model since the last backward.
    """

    step: int
    optimizers: int
    model: int
    mark: Mark | None
    length: int
    inputs: tuple[torch.Tensor, ...]
    alone: bool
    loaded: frozenset[int]
    width: int
    training: bool
    whole: bool
    targets: torch.Tensor | None = None
    dims: int = 0
    loss: Mark | None = None
    source: int = -1
    is_loaded: bool = False
    leads: bool = True

    @property
    def is_cut(self) -> bool:
        """Whether the batch has more rows than were sampled."""
        return self.length > len(self.inputs[0])
