"""Models in `DistributedDataParallel`: decides which backward DDP reduces, and averages the rest.

DDP averages gradients over processes only during the first backward after a forward pass. It misses
a second backward of the same forward pass, a window that closes early, and a loss with its own
scale. Gradients that DDP did not average are averaged when the window closes. This is correct even
if a part of them was averaged before: averaging values that are equal on all processes does not
change them.
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
from halfstep.mechanisms.technique import as_function

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from halfstep.engine.processes.ranks import Ranks
    from halfstep.engine.window.window import Window
    from halfstep.recipe import Recipe


@dataclass(slots=True, eq=False)
class Replica:
    """One `DistributedDataParallel` wrapper.

    Attributes:
        wrapper: The wrapper.
        params: The parameters that the wrapper reduces, as an ordered set.
        windows: The windows of the optimizers that update these parameters.
        reduction: The communication hook of the wrapper, if the engine has registered one.
        expects: Whether a forward pass has made the wrapper reduce the next backward.
        unreduced: The windows whose gradients are not completely averaged over processes.
    """

    wrapper: DistributedDataParallel
    params: dict[torch.Tensor, None]
    windows: list[Window]
    reduction: Reduction | None
    expects: bool = False
    unreduced: set[Window] = field(default_factory=set)

    @property
    def by_wrapper(self) -> bool:
        """Whether the wrapper may reduce.

        With several optimizers it may not: DDP would wait for ever in a backward that is limited to
        the parameters of one of them.
        """
        return len(self.windows) <= 1

    def those_of(self, window: Window) -> list[torch.Tensor]:
        """Return the parameters of the wrapper that the optimizer of `window` updates."""
        return [param for param in window.params if param in self.params]


class Replicas:
    """All DDP wrappers of one engine, including those that are added around its models later.

    Args:
        recipe: The recipe; it chooses the format in which gradients are reduced.
        windows: The engine's windows.
        ranks: The processes that train together; joins the process group of each wrapper.

    Attributes:
        expected: Whether there are wrappers, or may be some later.
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
        """Return `model` in DDP; if it has no trainable parameters, return `model` itself."""
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
        """Register the wrappers inside `models`, and detect those added around them later."""
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
        """From the next forward pass on, let only wrappers with a window in `closing` reduce."""
        self._closing = list(closing)
        for replica in self._replicas.values():
            self._set_sync(replica)

    @contextmanager
    def reducing(
        self, windows: Sequence[Window], inputs: Sequence[torch.Tensor] | None, *, whole: bool
    ) -> Iterator[None]:
        """Let the wrappers reduce the backward inside, and record which gradients are averaged.

        Args:
            windows: Windows whose parameters the backward may reach.
            inputs: The parameters to which the backward is limited; None for no limit.
            whole: Whether `.grad` holds all gradients of the window during the backward, not only
                those of one loss.
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
        """Prepare for the backward, and return the wrappers that will reduce it."""
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
        """Record which gradients are averaged now; `whole` must be False after an error."""
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
        """Average the gradients of `windows` that are not averaged yet."""
        for replica in self._replicas.values():
            for window in self._windows:
                if window in windows and window in replica.unreduced:
                    replica.unreduced.discard(window)
                    params = replica.those_of(window)
                    average_grads(params, _chosen(self._recipe), self._ranks)
                    if window.true_grads:
                        average_true_grads(window.true_grads, params, self._ranks)

    def forget(self, windows: Sequence[Window]) -> None:
        """Clear the records on `windows`, whose gradients are used or dropped."""
        for replica in self._replicas.values():
            replica.unreduced.difference_update(windows)

    def close(self) -> None:
        """Remove the hooks, and let the wrappers reduce every backward again."""
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
        # Forward pre-hooks of the wrapper run before it checks `require_backward_grad_sync`.
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
        # torch.compile calls this function too; there is no public one.
        active = DistributedDataParallel._get_active_ddp_module()  # noqa: SLF001
        if active is None or active in self._replicas:
            return
        wrapped = set(active.parameters())
        if any(param in wrapped for window in self._windows for param in window.params):
            self._before_forward(self._adopt(active))  # not a wrapper of a copy


def _chosen(recipe: Recipe) -> torch.dtype | None:
    """Return the dtype in which a recipe sums gradients; None for the gradients' own dtype."""
    return None if recipe.reduction in (None, "own") else torch_dtype(recipe.reduction)


def _reached(replica: Replica, windows: Iterable[Window]) -> list[Window]:
    return [window for window in replica.windows if window in windows]


def refuse_no_processes() -> None:
    """Refuse DDP if there is no process group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "parallel='ddp' needs a process group; write torch.distributed.init_process_group() "
            "first and start the program by torchrun, or leave parallel out"
        )


def _refuse_partial_backward() -> None:
    """Raise the error for a backward limited to a part of a DDP model: DDP would wait for ever."""
    raise RuntimeError(
        "engine.backward(optimizers=[...]) reaches some parameters of a model in "
        "DistributedDataParallel, which waits for all of them; give every parameter of the model "
        "to an optimizer of the engine, or freeze it with requires_grad_(False) before "
        "Engine(..., parallel='ddp')"
    )


def _refuse_sharded_late() -> None:
    """Raise the error for a model that was sharded after its optimizer was built."""
    raise RuntimeError(
        "fully_shard(engine.model) came after the engine, and replaced the parameters that its "
        "optimizer holds; write model = halfstep.shard(model, recipe), then the optimizer, then "
        "Engine(model, optimizer, recipe=recipe)"
    )
