"""Models that every process holds whole: `DistributedDataParallel`, and which backward it reduces.

DDP averages gradients over the processes during the one backward that follows a forward. What it
does not see (a second backward of the same forward, a window that closes early, a loss with a scale
of its own) is averaged when the window closes. That is right whatever part was averaged before, as
averaging what is equal on all processes changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from halfstep.engine.misuse import refuse_partial_backward, refuse_sharded_late
from halfstep.engine.parallel.reduction import Reduction
from halfstep.formats import torch_dtype
from halfstep.layers.sync_batchnorm import activates, convert, drop_and_act
from halfstep.techniques.base import HALVES, as_function
from halfstep.techniques.gradients import put_grad

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from halfstep.engine.parallel.ranks import Ranks
    from halfstep.engine.slot import Slot
    from halfstep.recipe import Recipe


@dataclass(slots=True, eq=False)
class Replica:
    """One wrapper.

    Attributes:
        wrapper: The wrapper.
        params: The parameters that it reduces, as an ordered set.
        slots: The optimizers that they belong to.
        reduction: Its communication hook, where the engine has given it one.
        expects: Whether a forward pass has made the wrapper reduce the next backward.
        unreduced: Optimizers whose gradients of this window are not wholly averaged.
    """

    wrapper: DistributedDataParallel
    params: dict[torch.Tensor, None]
    slots: list[Slot]
    reduction: Reduction | None
    expects: bool = False
    unreduced: set[Slot] = field(default_factory=set)

    @property
    def by_wrapper(self) -> bool:
        """Whether the wrapper can reduce: a backward limited to a part of it would never end."""
        return len(self.slots) <= 1

    def those_of(self, slot: Slot) -> list[torch.Tensor]:
        """Return the parameters that `slot` updates."""
        return [param for param in slot.params if param in self.params]


class Replicas:
    """All wrappers of one engine, also those that are put around its models later.

    Args:
        recipe: Says in which format gradients are reduced.
        slots: The engine's optimizers.
        ranks: Joined with the process group of each wrapper.
    """

    def __init__(self, recipe: Recipe, slots: Sequence[Slot], ranks: Ranks) -> None:
        self._recipe = recipe
        self._slots = slots
        self._ranks = ranks
        self._replicas: dict[DistributedDataParallel, Replica] = {}
        self._closing: list[Slot] = list(slots)
        self._handles: list[Any] = []

    def wrap(self, model: nn.Module, options: Mapping[str, Any]) -> nn.Module:
        """Return `model` in DDP; without parameters to train, `model` itself."""
        params = [param for param in model.parameters() if param.requires_grad]
        if not params:
            return model
        own: dict[str, Any] = {}
        if params[0].is_cuda and len({param.device for param in params}) == 1:
            own["device_ids"] = [params[0].device]
        wrapper = DistributedDataParallel(model, **{**own, **options})
        self._adopt(wrapper)
        return wrapper

    def watch(self, models: Iterable[nn.Module]) -> None:
        """Take in the wrappers inside `models`, and notice those put around them later."""
        for model in models:
            for module in model.modules():
                if isinstance(module, DistributedDataParallel):
                    self._adopt(module)
            if dist.is_available() and dist.is_initialized():
                sharded = _sharded(model)
                notice = as_function(
                    lambda module, _args, sharded=sharded: self._notice(module, sharded=sharded)
                )
                self._handles.append(model.register_forward_pre_hook(notice))

    def open(self, closing: Sequence[Slot]) -> None:
        """Let the wrappers reduce only where a window closes, from the next forward pass on."""
        self._closing = list(closing)
        for replica in self._replicas.values():
            self._set_sync(replica)

    def before_backward(
        self, slots: Sequence[Slot], inputs: Sequence[torch.Tensor] | None
    ) -> list[Replica]:
        """Get ready for gradients.

        Args:
            slots: Those whose parameters the backward may reach.
            inputs: The parameters that it is limited to, or None.

        Returns:
            The wrappers that will reduce it.
        """
        reached = [r for r in self._replicas.values() if _reached(r, slots)]
        if inputs is not None:
            given = set(inputs)
            for replica in reached:
                if replica.expects and not given >= replica.params.keys():
                    refuse_partial_backward()
        reducing = [replica for replica in reached if replica.expects]
        for replica in reducing:
            if replica.reduction:
                replica.reduction.take_aside(replica.params)
        return reducing

    def after_backward(
        self, reducing: Sequence[Replica], slots: Sequence[Slot], *, whole: bool
    ) -> None:
        """Note which gradients are averaged now.

        Args:
            reducing: What `before_backward` returned.
            slots: Those whose parameters the backward may have reached.
            whole: Whether it saw all gradients of the window, not those of one loss alone.
        """
        for replica in self._replicas.values():
            if replica in reducing:
                replica.expects = False
                if replica.reduction:
                    replica.reduction.put_back()
            for slot in _reached(replica, slots):
                if replica in reducing and whole and not slot.true_grads:
                    replica.unreduced.discard(slot)
                else:
                    replica.unreduced.add(slot)

    def average(self, slots: Sequence[Slot]) -> None:
        """Average what is not averaged yet of the gradients of `slots`."""
        for replica in self._replicas.values():
            for slot in self._slots:
                if slot in slots and slot in replica.unreduced:
                    replica.unreduced.discard(slot)
                    params = replica.those_of(slot)
                    _average_grads(params, self._recipe, self._ranks)
                    if slot.true_grads:
                        _average_true(slot.true_grads, params, self._ranks)

    def forget(self, slots: Sequence[Slot]) -> None:
        """Forget the windows of `slots`, whose gradients are used or dropped."""
        for replica in self._replicas.values():
            replica.unreduced.difference_update(slots)

    def close(self) -> None:
        """Leave the wrappers alone."""
        for handle in self._handles:
            handle.remove()
        for replica in self._replicas.values():
            replica.wrapper.require_backward_grad_sync = True
        self._replicas.clear()

    def _adopt(self, wrapper: DistributedDataParallel) -> Replica:
        ignored = wrapper.parameters_to_ignore
        params = {
            param: None
            for name, param in wrapper.module.named_parameters()
            if param.requires_grad and name not in ignored
        }
        slots = [slot for slot in self._slots if any(param in params for param in slot.params)]
        replica = Replica(wrapper, params, slots, self._hooked(wrapper))
        self._ranks.join(wrapper.process_group)
        self._replicas[wrapper] = replica
        # The wrapper's own hooks run before it asks whether it is to reduce.
        before = as_function(lambda *_: self._before_forward(replica))
        self._handles.append(wrapper.register_forward_pre_hook(before))
        self._set_sync(replica)
        return replica

    def _hooked(self, wrapper: DistributedDataParallel) -> Reduction | None:
        if self._recipe.reduction is None:
            return None
        reduction = Reduction(_chosen(self._recipe), wrapper.process_group)
        try:
            wrapper.register_comm_hook(reduction, lambda state, bucket: state.hook(bucket))
        except RuntimeError as error:
            raise ValueError(
                f"recipe {self._recipe.name!r} chooses the format that gradients are reduced in, "
                "but DistributedDataParallel has a communication hook already; write "
                "Engine(model, ..., parallel='ddp') with the bare model"
            ) from error
        return reduction

    def _set_sync(self, replica: Replica) -> None:
        closing = not replica.slots or any(slot in self._closing for slot in replica.slots)
        replica.wrapper.require_backward_grad_sync = replica.by_wrapper and closing

    def _before_forward(self, replica: Replica) -> None:
        if torch.is_grad_enabled() and replica.wrapper.require_backward_grad_sync:
            replica.expects = True

    def _notice(self, model: nn.Module, *, sharded: bool) -> None:
        if torch.compiler.is_compiling():
            return
        if not sharded and _sharded(model):
            refuse_sharded_late()
        # torch's own compiler asks this, too; there is no public way.
        active = DistributedDataParallel._get_active_ddp_module()  # noqa: SLF001
        if active is None or active in self._replicas:
            return
        wrapped = set(active.parameters())
        if any(param in wrapped for slot in self._slots for param in slot.params):
            self._before_forward(self._adopt(active))  # and not that of a copy of the model


def _chosen(recipe: Recipe) -> torch.dtype | None:
    """Return the format that a recipe chooses for the sum of gradients; None for their own."""
    return None if recipe.reduction in (None, "own") else torch_dtype(recipe.reduction)


def _sharded(model: nn.Module) -> bool:
    return type(model).__name__.startswith("FSDP")


def _reached(replica: Replica, slots: Iterable[Slot]) -> list[Slot]:
    return [slot for slot in replica.slots if slot in slots]


def _average_grads(params: Sequence[torch.Tensor], recipe: Recipe, ranks: Ranks) -> None:
    """Average `.grad` in fp32 at least, or as the recipe says; one that exists nowhere stays None.

    Gradients of half parameters are fp32 after it on every process, those that had none included.
    """
    for dtype in sorted({_wide(param) for param in params}, key=str):
        group = [param for param in params if _wide(param) == dtype]
        grads = [param.grad for param in group]
        if any(grad is not None and grad.is_sparse for grad in grads):
            raise TypeError(
                "a sparse gradient was not reduced by the backward that made it, and cannot be "
                "later; add up the losses of a forward pass and call engine.backward once, or "
                "write sparse=False in the embedding"
            )
        means = _means(grads, group, _chosen(recipe) or dtype, ranks)
        for param, mean in zip(group, means, strict=True):
            if mean is not None:
                put_grad(param, mean.to(dtype))


def _average_true(
    held: dict[torch.Tensor, torch.Tensor], params: Sequence[torch.Tensor], ranks: Ranks
) -> None:
    for dtype in sorted({_wide(param) for param in params}, key=str):
        group = [param for param in params if _wide(param) == dtype]
        means = _means([held.get(param) for param in group], group, dtype, ranks)
        held.update({p: m for p, m in zip(group, means, strict=True) if m is not None})


def _means(
    values: Sequence[torch.Tensor | None],
    like: Sequence[torch.Tensor],
    dtype: torch.dtype,
    ranks: Ranks,
) -> list[torch.Tensor | None]:
    """Average values that some processes may lack, in one sum; None for what no process has."""
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


def _wide(param: torch.Tensor) -> torch.dtype:
    return torch.float32 if param.dtype in HALVES else param.dtype


def synchronize_batchnorm(model: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    """Make every batch norm see the batches of all processes; parameters stay the same objects.

    Raises:
        TypeError: If a batch norm does more than that, and nobody knows what.
    """
    if next(model.parameters()).device.type == "cpu":
        return convert(model, group)
    fused = [name for name, layer in model.named_modules() if activates(layer)]
    synchronized: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model, group)
    for name in fused:
        synchronized.get_submodule(name).register_forward_hook(drop_and_act)
    return synchronized
