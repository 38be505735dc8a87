"""Models that every process holds whole: `DistributedDataParallel`, and which backward it reduces.

DDP averages gradients over the processes during the one backward that follows a forward. What it
does not see (a second backward of the same forward, a window that closes early, a loss with a scale
of its own) is averaged when the window closes. That is right whatever part was averaged before, as
averaging what is equal on all processes changes nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from halfstep.engine.parallel.reduction import Reduction, average_grads, average_true_grads
from halfstep.engine.parallel.wrappers import is_fully_sharded
from halfstep.formats import torch_dtype
from halfstep.techniques.base import as_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from halfstep.engine.parallel.ranks import Ranks
    from halfstep.engine.window import Window
    from halfstep.recipe import Recipe


@dataclass(slots=True, eq=False)
class Replica:
    """One wrapper.

    Attributes:
        wrapper: The wrapper.
        params: The parameters that it reduces, as an ordered set.
        windows: The optimizers that they belong to.
        reduction: Its communication hook, where the engine has given it one.
        expects: Whether a forward pass has made the wrapper reduce the next backward.
        unreduced: Optimizers whose gradients of this window are not wholly averaged.
    """

    wrapper: DistributedDataParallel
    params: dict[torch.Tensor, None]
    windows: list[Window]
    reduction: Reduction | None
    expects: bool = False
    unreduced: set[Window] = field(default_factory=set)

    @property
    def by_wrapper(self) -> bool:
        """Whether the wrapper can reduce: a backward limited to a part of it would never end."""
        return len(self.windows) <= 1

    def those_of(self, window: Window) -> list[torch.Tensor]:
        """Return the parameters that `window` updates."""
        return [param for param in window.params if param in self.params]


class Replicas:
    """All wrappers of one engine, also those that are put around its models later.

    Args:
        recipe: Says in which format gradients are reduced.
        windows: The engine's optimizers.
        ranks: Joined with the process group of each wrapper.

    Attributes:
        expected: Whether there is any, or may yet be.
    """

    def __init__(self, recipe: Recipe, windows: Sequence[Window], ranks: Ranks) -> None:
        self._recipe = recipe
        self._windows = windows
        self._ranks = ranks
        self._replicas: dict[DistributedDataParallel, Replica] = {}
        self._closing: list[Window] = list(windows)
        self._handles: list[Any] = []
        self.expected = False

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
                self.expected = True
                sharded = is_fully_sharded(model)
                notice = as_function(
                    lambda module, _args, sharded=sharded: self._notice(module, sharded=sharded)
                )
                self._handles.append(model.register_forward_pre_hook(notice))

    def open(self, closing: Sequence[Window]) -> None:
        """Let the wrappers reduce only where a window closes, from the next forward pass on."""
        self._closing = list(closing)
        for replica in self._replicas.values():
            self._set_sync(replica)

    @contextmanager
    def reducing(
        self, windows: Sequence[Window], inputs: Sequence[torch.Tensor] | None, *, whole: bool
    ) -> Iterator[None]:
        """Let the wrappers reduce the backward inside, and note which gradients are averaged.

        Args:
            windows: Those whose parameters the backward may reach.
            inputs: The parameters that it is limited to, or None.
            whole: Whether it sees all gradients of the window, not those of one loss alone.
        """
        reducing = self._before_backward(windows, inputs)
        done = False
        try:
            yield
            done = True
        finally:
            self._after_backward(reducing, windows, whole=done and whole)

    def _before_backward(
        self, windows: Sequence[Window], inputs: Sequence[torch.Tensor] | None
    ) -> list[Replica]:
        """Get ready for gradients, and return the wrappers that will reduce them."""
        reached = [r for r in self._replicas.values() if _reached(r, windows)]
        if inputs is not None:
            given = set(inputs)
            for replica in reached:
                if replica.expects and not given >= replica.params.keys():
                    _refuse_partial_backward()
        reducing = [replica for replica in reached if replica.expects]
        for replica in reducing:
            if replica.reduction:
                replica.reduction.take_aside(replica.params)
        return reducing

    def _after_backward(
        self, reducing: Sequence[Replica], windows: Sequence[Window], *, whole: bool
    ) -> None:
        """Note which gradients are averaged now; `whole` is False after an error, too."""
        for replica in self._replicas.values():
            if replica in reducing:
                replica.expects = False
                if replica.reduction:
                    replica.reduction.put_back()
            for window in _reached(replica, windows):
                if replica in reducing and whole and not window.true_grads:
                    replica.unreduced.discard(window)
                else:
                    replica.unreduced.add(window)

    def average(self, windows: Sequence[Window]) -> None:
        """Average what is not averaged yet of the gradients of `windows`."""
        for replica in self._replicas.values():
            for window in self._windows:
                if window in windows and window in replica.unreduced:
                    replica.unreduced.discard(window)
                    params = replica.those_of(window)
                    average_grads(params, _chosen(self._recipe), self._ranks)
                    if window.true_grads:
                        average_true_grads(window.true_grads, params, self._ranks)

    def forget(self, windows: Sequence[Window]) -> None:
        """Forget the windows of `windows`, whose gradients are used or dropped."""
        for replica in self._replicas.values():
            replica.unreduced.difference_update(windows)

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
        windows = [
            window for window in self._windows if any(param in params for param in window.params)
        ]
        self.expected = True
        replica = Replica(wrapper, params, windows, self._hooked(wrapper))
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
        closing = not replica.windows or any(window in self._closing for window in replica.windows)
        replica.wrapper.require_backward_grad_sync = replica.by_wrapper and closing

    def _before_forward(self, replica: Replica) -> None:
        if torch.is_grad_enabled() and replica.wrapper.require_backward_grad_sync:
            replica.expects = True

    def _notice(self, model: nn.Module, *, sharded: bool) -> None:
        if torch.compiler.is_compiling():
            return
        if not sharded and is_fully_sharded(model):
            _refuse_sharded_late()
        # torch's own compiler asks this, too; there is no public way.
        active = DistributedDataParallel._get_active_ddp_module()  # noqa: SLF001
        if active is None or active in self._replicas:
            return
        wrapped = set(active.parameters())
        if any(param in wrapped for window in self._windows for param in window.params):
            self._before_forward(self._adopt(active))  # and not that of a copy of the model


def _chosen(recipe: Recipe) -> torch.dtype | None:
    """Return the format that a recipe chooses for the sum of gradients; None for their own."""
    return None if recipe.reduction in (None, "own") else torch_dtype(recipe.reduction)


def _reached(replica: Replica, windows: Iterable[Window]) -> list[Window]:
    return [window for window in replica.windows if window in windows]


def refuse_no_processes() -> None:
    """Refuse DDP where no process group has been started."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "parallel='ddp' needs a process group; write torch.distributed.init_process_group() "
            "first and start the program by torchrun, or leave parallel out"
        )


def _refuse_partial_backward() -> None:
    """Refuse a backward that reaches a part of a wrapped model: DDP would wait for the rest."""
    raise RuntimeError(
        "engine.backward(optimizers=[...]) reaches some parameters of a model in "
        "DistributedDataParallel, which waits for all of them; give every parameter of the model "
        "to an optimizer of the engine, or freeze it with requires_grad_(False) before "
        "Engine(..., parallel='ddp')"
    )


def _refuse_sharded_late() -> None:
    """Refuse a model that was sharded after its optimizer took hold of the parameters."""
    raise RuntimeError(
        "fully_shard(engine.model) came after the engine, and replaced the parameters that its "
        "optimizer holds; write model = halfstep.shard(model, recipe), then the optimizer, then "
        "Engine(model, optimizer, recipe=recipe)"
    )
