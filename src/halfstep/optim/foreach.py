"""The base class of halfstep's optimizers: lists of tensors, fp32 arithmetic, exact resumes.

torch's fused and foreach kernels take lists of tensors of one format. Parameters in a half format
are copied to fp32, updated there and rounded once, as a fused mixed-precision kernel does it.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


CHUNK_ELEMENTS = 1 << 24
"""The number of elements that are updated at a time: 64 MiB of fp32 copies of the weights."""


class ForeachOptimizer(Optimizer):
    """An optimizer that updates a whole parameter group at a time.

    A subclass implements the update of the parameters that have a gradient in `_update_group`. In
    `_start_step`, it computes the values that the update needs from all groups.
    """

    computes_in_fp32 = True

    def step(  # type: ignore[override]  # torch's overloads say the same in two signatures
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Take one step.

        Args:
            closure: Evaluates the loss again and returns it.

        Raises:
            RuntimeError: If a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            self._start_step()
            for group in self.param_groups:
                params = self._with_gradients(group)
                if params:
                    self._update_group(group, params)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict, with every tensor in the format in which it was saved.

        torch casts floating-point state to the format of the parameter, which would round the fp32
        moments of half parameters.
        """
        super().load_state_dict(state_dict)
        saved_ids = [name for group in state_dict["param_groups"] for name in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for name, param in zip(saved_ids, params, strict=True):
            for key, value in state_dict["state"].get(name, {}).items():
                if isinstance(value, torch.Tensor):
                    self.state[param][key] = deepcopy(value).to(param.device)

    def _start_step(self) -> None:
        """Compute the values that `_update_group` needs from all groups; by default, nothing."""

    def _update_group(self, group: dict[str, Any], params: list[torch.Tensor]) -> None:
        """Update `params`, the parameters of `group` that have a gradient."""
        raise NotImplementedError

    def _with_gradients(self, group: dict[str, Any]) -> list[torch.Tensor]:
        params = [param for param in group["params"] if param.grad is not None]
        if any(param.grad.is_sparse for param in params):
            raise RuntimeError(
                f"{type(self).__name__} does not support sparse gradients; write sparse=False in "
                "the embedding, or use torch.optim.SparseAdam for its parameters"
            )
        return params


def widened(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return a list of `tensors` in which fp32 copies replace the tensors in a half format."""
    return [tensor.float() if tensor.dtype in HALVES else tensor for tensor in tensors]


def round_back(tensors: Sequence[torch.Tensor], wide: Sequence[torch.Tensor]) -> None:
    """Round `wide`, the result of `widened(tensors)` after its update, into `tensors`."""
    pairs = [(own, copy) for own, copy in zip(tensors, wide, strict=True) if own is not copy]
    if pairs:
        torch._foreach_copy_([own for own, _ in pairs], [copy for _, copy in pairs])


def gradients(params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients of `params`, which must all have one; half gradients as fp32 copies."""
    return widened([param.grad for param in params if param.grad is not None])


def by_format(params: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Split `params` into lists of one device and one format each; the order is kept."""
    lists: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for param in params:
        lists.setdefault((param.device, param.dtype), []).append(param)
    return list(lists.values())


def in_chunks(tensors: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield `tensors` in lists of at most `CHUNK_ELEMENTS` elements.

    A tensor with more elements is alone in its list.
    """
    chunk: list[torch.Tensor] = []
    elements = 0
    for tensor in tensors:
        if chunk and elements + tensor.numel() > CHUNK_ELEMENTS:
            yield chunk
            chunk, elements = [], 0
        chunk.append(tensor)
        elements += tensor.numel()
    if chunk:
        yield chunk
