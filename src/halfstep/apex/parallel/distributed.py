"""Apex's `DistributedDataParallel` on top of torch's, and `Reducer`, which averages on request.

torch's wrapper manages the buckets and overlaps communication with the backward. A communication
hook reduces each bucket as Apex does, with Apex's choice of format and of division.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import parallel

MIB = 1 << 20

_NAMES = inspect.signature(parallel.DistributedDataParallel.__init__).parameters
_SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"
"""torch's name for the argument that broadcasts buffers before each forward; Apex does not."""


class DistributedDataParallel(parallel.DistributedDataParallel):
    """Averages gradients over all processes during the backward.

    At construction, all processes get the parameters of rank 0. A loss need not reach all
    parameters.

    Args:
        module: The model; with mixed precision, the model that `amp.initialize` returned.
        message_size: Number of fp32 elements per bucket.
        delay_allreduce: Reduce all gradients at the end of the backward, in one bucket.
        shared_param: Refused, as in Apex.
        allreduce_trigger_params: No effect, because torch decides when communication starts.
            Refused together with `delay_allreduce`, as in Apex.
        retain_allreduce_buffers: Keep the reduced buckets in `allreduce_buffers`; gradients are
            views of them.
        allreduce_always_fp32: Reduce half-precision gradients in fp32.
        num_allreduce_streams: No effect, because torch decides how many streams communicate. More
            than one is refused together with `delay_allreduce`, as in Apex.
        allreduce_communicators: No effect. As in Apex, it needs several streams, and two lists with
            one entry per stream.
        gradient_average: Divide the sum of the gradients by the number of processes.
        gradient_predivide_factor: Divide by this factor before the sum. With `gradient_average`,
            the division after the sum is by the number of processes divided by this factor.
        gradient_average_split_factor: No effect, as in Apex.
        prof: No effect; torch's profiler names the regions itself.

    Raises:
        ValueError: For arguments that exclude each other.
    """

    def __init__(  # noqa: PLR0913, PLR0917  (Apex's signature)
        self,
        module: nn.Module,
        message_size: int = 10_000_000,
        delay_allreduce: bool = False,
        shared_param: Any = None,
        allreduce_trigger_params: Iterable[torch.Tensor] | None = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: Any = None,
        gradient_average: bool = True,
        gradient_predivide_factor: float = 1.0,
        gradient_average_split_factor: float | None = None,
        prof: bool = False,
    ) -> None:
        del gradient_average_split_factor, prof
        if shared_param is not None:
            raise ValueError(
                "shared_param is no longer supported as an option. Shared parameters need none; to "
                "delay communication to the end of the backward write delay_allreduce=True"
            )
        if delay_allreduce and num_allreduce_streams > 1:
            raise ValueError(
                f"num_allreduce_streams is {num_allreduce_streams} and delay_allreduce is True; "
                "allowed: one stream, or delay_allreduce=False"
            )
        if delay_allreduce and allreduce_trigger_params is not None:
            raise ValueError(
                "Setting allreduce_trigger_params is only valid if delay_allreduce=False; leave "
                "one of them out"
            )
        if allreduce_communicators:
            assert num_allreduce_streams > 1
            assert len(allreduce_communicators[0]) == num_allreduce_streams
            assert len(allreduce_communicators[1]) == num_allreduce_streams
        sizes = [param.numel() * param.element_size() for param in module.parameters()]
        bucket = sum(sizes) if delay_allreduce else message_size * 4
        local_buffers: dict[str, Any] = {_SYNC_BUFFERS: False}
        super().__init__(
            module,
            bucket_cap_mb=max(1, -(-bucket // MIB)),
            **local_buffers,
            find_unused_parameters=True,
            gradient_as_bucket_view=retain_allreduce_buffers,
        )
        self.delay_allreduce = delay_allreduce
        self.message_size = message_size
        self.retain_allreduce_buffers = retain_allreduce_buffers
        self.allreduce_always_fp32 = allreduce_always_fp32
        self.gradient_average = gradient_average
        self.gradient_predivide_factor = gradient_predivide_factor
        self.allreduce_buffers: list[torch.Tensor] = []
        # A lambda: torch checks the annotations of a hook, and cannot read postponed ones.
        self.register_comm_hook(self, lambda state, bucket: _reduce(state, bucket))  # noqa: PLW0108

    def enable_allreduce(self) -> None:
        """Reduce gradients from the next forward on."""
        self.require_backward_grad_sync = True

    def disable_allreduce(self) -> None:
        """Do not reduce gradients from the next forward on; each process keeps its own."""
        self.require_backward_grad_sync = False

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the model."""
        self.allreduce_buffers = []
        return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]  # torch's


def _reduce(settings: DistributedDataParallel, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Reduce one bucket of gradients in Apex's order of operations."""
    buffer: torch.Tensor = bucket.buffer()
    wide = buffer.float() if settings.allreduce_always_fp32 else buffer
    if settings.gradient_predivide_factor != 1.0:
        wide.mul_(1.0 / settings.gradient_predivide_factor)
    group = settings.process_group
    work = dist.all_reduce(wide, group=group, async_op=True)
    assert work is not None

    def after(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        total: torch.Tensor = done.value()[0]
        if settings.gradient_average:
            total.mul_(settings.gradient_predivide_factor / dist.get_world_size(group))
        reduced = total if total is buffer else buffer.copy_(total)
        if settings.retain_allreduce_buffers:
            settings.allreduce_buffers.append(reduced)
        return reduced

    reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(after)
    return reduced


class Reducer:
    """Averages gradients over all processes when `reduce` is called.

    Args:
        module_or_grads_list: A model, whose parameters are set to those of rank 0; or gradients, in
            containers that may be nested.
    """

    def __init__(self, module_or_grads_list: Any) -> None:
        self.module: nn.Module | None = None
        self.grads: list[torch.Tensor] = []
        if isinstance(module_or_grads_list, nn.Module):
            self.module = module_or_grads_list
            flat_dist_call(self.module.parameters(), dist.broadcast, (0,))
        else:
            self.grads = list(_tensors(module_or_grads_list))

    def reduce(self) -> None:
        """Average the gradients over all processes; parameters without a gradient are skipped."""
        grads = self.grads
        if self.module is not None:
            grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        flat_dist_call(grads, dist.all_reduce)


def flat_dist_call(
    tensors: Iterable[torch.Tensor], call: Callable[..., Any], extra_args: Iterable[Any] = ()
) -> None:
    """Call a function of torch.distributed on flattened tensors, and copy the results back.

    Tensors of one format on one kind of device are concatenated into one flat tensor.

    Args:
        tensors: Tensors of any shapes and formats; changed in place.
        call: `all_reduce`, whose result is divided by the number of processes, or another
            function, such as `broadcast`.
        extra_args: Further arguments of `call`.
    """
    for group in _by_type(tensors):
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
        call(flat, *(extra_args or ()))
        if call is dist.all_reduce:
            flat /= dist.get_world_size()
        parts = flat.split([tensor.numel() for tensor in group])
        for tensor, part in zip(group, parts, strict=True):
            tensor.detach().copy_(part.view_as(tensor))


def _tensors(nested: Any) -> Iterable[torch.Tensor]:
    """Yield the tensors in nested containers; other objects are skipped."""
    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, Iterable):
        for item in nested:
            yield from _tensors(item)


def _by_type(tensors: Iterable[torch.Tensor]) -> Iterable[list[torch.Tensor]]:
    groups: dict[str, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.type(), []).append(tensor)
    return groups.values()
