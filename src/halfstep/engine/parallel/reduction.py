"""Averages gradients over all processes: bucket by bucket in DDP, or all at once.

DDP makes the buckets and overlaps their reduction with the backward. `Reduction.hook` is DDP's
communication hook and chooses the format of the reduction. For fp32 gradients it uses torch's own
hooks. Gradients of half parameters need more, because DDP's buckets have the parameters' format,
while the engine accumulates in fp32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)

from halfstep.formats.dtypes import HALVES
from halfstep.kernels.gradients import put, wide

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.distributed import GradBucket  # type: ignore[attr-defined]  # made in C++

    from halfstep.engine.processes.ranks import Ranks

_COMPRESSED: dict[torch.dtype, Callable[..., torch.futures.Future[torch.Tensor]]] = {
    torch.float16: fp16_compress_hook,
    torch.bfloat16: bf16_compress_hook,
}


class Reduction:
    """Reduces DDP's buckets in a chosen format.

    Before a backward, gradients that half parameters have accumulated are set aside. The hook adds
    them to the new gradients. It keeps the mean outside the bucket, so that it is not rounded to
    the bucket's format. If the caller runs a backward without the engine, the mean is written to
    the bucket, as with torch's own hooks.

    Args:
        format_: Format in which gradients are summed over processes; None for their own format.
        group: The process group.
    """

    def __init__(self, format_: torch.dtype | None, group: dist.ProcessGroup) -> None:
        self._format = format_
        self._group = group
        self._aside: dict[torch.Tensor, torch.Tensor] = {}
        self._wanted: dict[torch.Tensor, torch.dtype] = {}
        self._means: dict[torch.Tensor, torch.Tensor] = {}

    def take_aside(self, params: Iterable[torch.Tensor]) -> None:
        """Set gradients of half parameters aside, so that DDP gets gradients in their format."""
        for param in params:
            if param.dtype not in HALVES:
                continue
            self._wanted[param] = param.grad_dtype or param.dtype
            if param.grad is not None:
                self._aside[param] = param.grad
                param.grad = None
            param.grad_dtype = param.dtype

    def put_back(self) -> None:
        """Set `.grad` to the means after the backward, in the format from before `take_aside`."""
        for param, wanted in self._wanted.items():
            mean, before = self._means.get(param), self._aside.get(param)
            if mean is not None and (param.grad is not None or before is not None):
                put(param, mean.to(wanted))
            elif before is not None:
                put(param, before)
            elif param.grad is None:
                param.grad_dtype = wanted
        self._aside.clear()
        self._wanted.clear()
        self._means.clear()

    def hook(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Start the reduction of a bucket; this is DDP's communication hook."""
        buffer = bucket.buffer()
        if buffer.dtype in HALVES:
            return self._reduce_half(bucket, buffer)
        compressed = None if self._format == buffer.dtype else self._format
        return _COMPRESSED.get(compressed or buffer.dtype, allreduce_hook)(self._group, bucket)

    def _reduce_half(
        self, bucket: GradBucket, buffer: torch.Tensor
    ) -> torch.futures.Future[torch.Tensor]:
        params = bucket.parameters()
        accumulates = torch.float32 in {self._wanted.get(param) for param in params}
        sums = buffer.to(torch.float32) if accumulates else buffer.clone()
        places = [_part(sums, grad, buffer) for grad in bucket.gradients()]
        for param, place in zip(params, places, strict=True):
            if param in self._aside:
                place.add_(self._aside[param])
        reduced = sums if self._format is None else sums.to(self._format)
        reduced.div_(self._group.size())
        # Without `take_aside`, the caller runs this backward without the engine, and nothing will
        # call `put_back`.
        by_engine = bool(self._wanted)
        if by_engine:
            for param, grad in zip(params, bucket.gradients(), strict=True):
                self._means[param] = _part(reduced, grad, buffer)
        work = dist.all_reduce(reduced, group=self._group, async_op=True)
        assert work is not None
        done: torch.futures.Future[torch.Tensor] = work.get_future().then(
            lambda _: buffer if by_engine else buffer.copy_(reduced)
        )
        return done


def _part(flat: torch.Tensor, grad: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Return the part of `flat` at the position that `grad` has in `buffer`."""
    return flat.as_strided(
        grad.size(), grad.stride(), grad.storage_offset() - buffer.storage_offset()
    )


def average_grads(
    params: Sequence[torch.Tensor], format_: torch.dtype | None, ranks: Ranks
) -> None:
    """Average `.grad` over the processes, after backward passes that no wrapper has reduced.

    A gradient that exists on no process stays None. A gradient that exists on any process exists on
    all of them afterwards. Gradients of half parameters are fp32 afterwards.

    Args:
        params: The parameters.
        format_: Format in which gradients are summed; None for their own format, fp32 or wider.
        ranks: The processes that train together.

    Raises:
        TypeError: If a gradient is sparse.
    """
    for dtype in sorted({wide(param.dtype) for param in params}, key=str):
        group = [param for param in params if wide(param.dtype) == dtype]
        grads = [param.grad for param in group]
        if any(grad is not None and grad.is_sparse for grad in grads):
            raise TypeError(
                "a sparse gradient was not reduced in its backward pass, and cannot be reduced "
                "later; add up the losses of a forward pass and call engine.backward once, or "
                "write sparse=False in the embedding"
            )
        means = _means(grads, group, format_ or dtype, ranks)
        for param, mean in zip(group, means, strict=True):
            if mean is not None:
                put(param, mean.to(dtype))


def average_true_grads(
    held: dict[torch.Tensor, torch.Tensor], params: Sequence[torch.Tensor], ranks: Ranks
) -> None:
    """Replace the gradients of `params` in `held` by their means over processes, fp32 or wider."""
    for dtype in sorted({wide(param.dtype) for param in params}, key=str):
        group = [param for param in params if wide(param.dtype) == dtype]
        means = _means([held.get(param) for param in group], group, dtype, ranks)
        held.update({p: m for p, m in zip(group, means, strict=True) if m is not None})


def _means(
    values: Sequence[torch.Tensor | None],
    like: Sequence[torch.Tensor],
    dtype: torch.dtype,
    ranks: Ranks,
) -> list[torch.Tensor | None]:
    """Average values over processes in one all-reduce; return None for a value that no process has.

    A process that lacks a value counts as 0. `like` gives the shapes and the device.
    """
    pieces = [
        (torch.zeros_like(param) if value is None else value).to(dtype).reshape(-1)
        for value, param in zip(values, like, strict=True)
    ]
    there = torch.tensor([value is not None for value in values], device=like[0].device)
    total = ranks.sum(torch.cat([*pieces, there.to(dtype)]).div_(ranks.size))
    *means, there = total.split([*(piece.numel() for piece in pieces), len(pieces)])
    return [
        mean.view(param.shape) if present else None
        for mean, param, present in zip(means, like, (there > 0).tolist(), strict=True)
    ]
