"""torch's SGD on fp32 parameters in C: one pass over memory and one call, for all of them together.

On a CPU, torch's SGD makes a pass for the weight decay, two for the momentum, one for Nesterov
momentum and one for the weights, and each is a call for every tensor. The calls take most of the
time of small tensors; large tensors do not fit into a cache.

The single pass gives the same bits as torch. It runs inside `optimizer.step()`, after the user's
pre-hooks and before the post-hooks, so that all hooks see the same tensors as in a step of torch.
"""

from __future__ import annotations

from collections import OrderedDict
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.optim import SGD
from torch.utils.hooks import RemovableHandle

from halfstep.kernels.native.fused import SGDOnArrays, SGDSettings, can_step_sgd
from halfstep.optim.watched import has_dispatch_mode, is_replaced, torchs_step_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

_STEP = torchs_step_of(SGD)
# `map` with these is faster than a loop; every step calls it for each parameter.
_GRAD, _KIND = attrgetter("grad"), attrgetter("__class__", "dtype", "layout")
_PLAIN = {(torch.Tensor, torch.float32, torch.strided)}
_EMPTY: dict[str, Any] = {}
_NUMBERS = itemgetter("lr", "momentum", "dampening", "weight_decay")
_FLAGS = itemgetter("maximize", "foreach", "differentiable", "fused")


class OnePass:
    """A context in which the steps of torch's SGD update fp32 parameters in one pass.

    The bits are those of torch. Parameters that `updates` does not yield are left to torch.

    Args:
        optimizer: A `torch.optim.SGD`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._kept: list[_Kept | None] = []
        self._hidden: list[tuple[dict[str, Any], list[torch.Tensor]]] = []
        self._key = RemovableHandle(OrderedDict()).id  # of no other hook

    @classmethod
    def of(cls, optimizer: Optimizer) -> OnePass | None:
        """Return the context for an optimizer; None if it has nothing that C can update."""
        has_any = type(optimizer) is SGD and any(
            param.dtype == torch.float32 and param.is_cpu
            for group in optimizer.param_groups
            for param in group["params"]
        )
        return cls(optimizer) if has_any else None

    def __enter__(self) -> None:
        optimizer = self._optimizer
        # A step that `torch.compile` replaced is excluded: each new hook would compile it again.
        if is_replaced(optimizer, _STEP):
            return
        # The hooks go to their places directly, which takes less time than to register them, and
        # there is no other way to be the first of the post-hooks.
        optimizer._optimizer_step_pre_hooks[self._key] = self._update  # noqa: SLF001
        after = cast("OrderedDict[int, Any]", optimizer._optimizer_step_post_hooks)  # noqa: SLF001
        after[self._key] = self._give_back
        after.move_to_end(self._key, last=False)

    def __exit__(self, *_: object) -> None:
        self._optimizer._optimizer_step_pre_hooks.pop(self._key, None)  # noqa: SLF001
        self._optimizer._optimizer_step_post_hooks.pop(self._key, None)  # noqa: SLF001
        self._give_back()

    def _update(self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > 1 or kwargs:
            return  # the closure computes the gradients only inside the step
        if has_dispatch_mode():
            return  # the mode would not see the update
        groups = self._optimizer.param_groups
        if len(self._kept) != len(groups):
            self._kept = [None] * len(groups)
        for place, group in enumerate(groups):
            settings = settings_of(group)
            if settings is None:
                continue
            params, state = group["params"], self._optimizer.state
            reached = [param for param in params if param.grad is not None]
            kept = self._kept[place]
            if kept is None or not kept.fits(reached, state, settings):
                kept = self._kept[place] = _Kept(reached, state, settings)
            if kept.params:
                kept.sgd.step([*map(_GRAD, kept.params)], settings)
                self._hidden.append((group, params))
                group["params"] = kept.others  # torch's step updates these

    def _give_back(self, *_: object) -> None:
        for group, params in self._hidden:
            group["params"] = params
        self._hidden.clear()


class _Kept:
    """The parameters of a group that C updates, with what does not change from step to step.

    Args:
        reached: The parameters of the group that have a gradient.
        state: The optimizer's state.
        settings: The settings of the group.

    Attributes:
        params: The parameters.
        others: Those that have a gradient, and that C does not update.
        sgd: Updates `params`.
    """

    def __init__(
        self,
        reached: Sequence[torch.Tensor],
        state: Mapping[torch.Tensor, Any],
        settings: SGDSettings,
    ) -> None:
        of_fp32 = [param for param in reached if param.dtype == torch.float32]
        places = [param.data_ptr() for param in of_fp32 if param.numel()]
        if len({*places}) < len(places):
            of_fp32 = []  # one parameter twice, or two in the same memory: in torch's order
        found = dict(updates(of_fp32, state, settings))
        self.params = [*found]
        self.others = [param for param in reached if param not in found]
        self._momenta = [momentum for momentum in found.values() if momentum is not None]
        self._reached = reached
        self._strides = [param.stride() for param in self.params]
        self.sgd = SGDOnArrays(self.params, self._momenta)

    def fits(
        self,
        reached: Sequence[torch.Tensor],
        state: Mapping[torch.Tensor, Any],
        settings: SGDSettings,
    ) -> bool:
        """Tell whether the same parameters and momentum buffers are in the same memory.

        The arguments are those of the constructor. The gradients must be as dense as before, too.
        """
        params, momenta = self.params, self._momenta
        if not params or bool(settings.momentum) != bool(momenta):
            return False
        present = (
            [state.get(param, _EMPTY).get("momentum_buffer") for param in params] if momenta else []
        )
        grads = [*map(_GRAD, params)]
        return (
            _same(reached, self._reached)
            and _same(present, momenta)
            and self.sgd.is_in_place()
            and set(map(_KIND, grads)) == _PLAIN
            and [*map(torch.Tensor.stride, grads)] == self._strides
        )


def _same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def settings_of(group: dict[str, Any]) -> SGDSettings | None:
    """Return the settings of a group of `torch.optim.SGD`; None for settings that C does not know.

    Args:
        group: One of `param_groups`.
    """
    lr, momentum, dampening, decay = numbers = _NUMBERS(group)
    if any(_FLAGS(group)) or not all(map(_is_number, numbers)):
        return None
    return SGDSettings(lr, momentum, dampening, decay, group["nesterov"])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def updates(
    params: Iterable[torch.Tensor], state: Mapping[torch.Tensor, Any], settings: SGDSettings
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    """Find the parameters that the C code can update with the same bits as torch's SGD.

    With momentum, no parameter is found before the first step, which creates the momentum buffers.

    Args:
        params: Parameters with gradients.
        state: The optimizer's state.
        settings: The settings of their group.

    Yields:
        A parameter, and its momentum buffer or None.
    """
    for param in params:
        grad, momentum = param.grad, None
        if settings.momentum:
            momentum = state.get(param, {}).get("momentum_buffer")
            if momentum is None:
                continue
        if grad is not None and can_step_sgd(param, grad, momentum):
            yield param, momentum
