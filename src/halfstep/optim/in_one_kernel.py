"""Steps of Adam and SGD in one pass over memory, for many parameters together (`kernels/update`).

The user's optimizer keeps its state, under torch's names, and its settings. What a step needs of
them is read on the device: the number of steps, a learning rate in a tensor, the counter of random
numbers, and whether to skip. So a step can be replayed, and skipped without the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from halfstep.kernels.memory_order import is_dense
from halfstep.kernels.update import COUNTERS, GROUP, Device, Rule, Tensors, update
from halfstep.optim.watched import has_hooks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch.optim import Optimizer

DEVICES = {"cuda"}
"""The types of devices whose parameters are updated in one pass."""

CORRECTIONS = {"kahan": torch.bfloat16, "split16": torch.int16, "split8": torch.int8}
"""The format of what a bf16 weight lacks of its exact value, for the ways that keep it."""

Way = Literal["stochastic", "kahan", "split16", "split8"]

_MOMENTS = {
    SGD: ("momentum_buffer",), Adam: ("exp_avg", "exp_avg_sq"), AdamW: ("exp_avg", "exp_avg_sq"),
}  # fmt: skip
_SCALE = "_scale"
"""What follows the name of a moment in 8 bits in the name of its scales."""
_GRADIENTS = (torch.bfloat16, torch.float32)
_LEFT_OUT = ("amsgrad", "differentiable")
"""Settings of torch's optimizers that another step implements."""


class InOneKernel:
    """Updates the parameters of optimizers in one pass over memory.

    Args:
        way: How bf16 weights keep small updates: "stochastic" rounding, "kahan" summation, or the
            missing bits of fp32, 16 or 8 of them ("split16", "split8").
        seed: Seed of the stochastic rounding.
        corrections: What each parameter lacks of its exact value; a step adds zeros if nothing is
            there.

    Attributes:
        draws: For each device, the number of steps that drew random numbers.
        lost: For each device with bf16 parameters, counters whose sum is the number of updates so
            far that round to nothing: the exact value moves, and what is stored of it does not.
    """

    def __init__(self, way: Way, seed: int, corrections: dict[torch.Tensor, torch.Tensor]) -> None:
        self._way = way
        self._seed = seed
        self.corrections = corrections
        self.draws: dict[torch.device, torch.Tensor] = {}
        self.lost: dict[torch.device, torch.Tensor] = {}
        self._places: dict[tuple[int, ...], torch.Tensor] = {}

    def takes(self, optimizer: Optimizer) -> set[torch.Tensor]:
        """Return the bf16 parameters on a GPU that `step` updates; none if hooks watch steps."""
        if has_hooks(optimizer):
            return set()
        return {
            param
            for group in optimizer.param_groups
            if not any(group.get(name) for name in _LEFT_OUT)
            for param in group["params"]
            if param.dtype == torch.bfloat16
            and param.device.type in DEVICES
            and _fits(optimizer, group, param)
        }

    def step(self, optimizer: Optimizer, taken: set[torch.Tensor], order: dict[Any, int]) -> None:
        """Take a step.

        Args:
            optimizer: The optimizer.
            taken: The result of `takes`.
            order: The place of each parameter among all, which determines its random numbers.
        """
        found_inf = getattr(optimizer, "found_inf", None)
        devices = set()
        for group in optimizer.param_groups:
            params = [
                param for param in group["params"] if param in taken and param.grad is not None
            ]
            for alike in self._alike(optimizer, group, params):
                devices.add(alike[0].device)
                self._update(optimizer, group, alike, found_inf, order)
        for device in devices:
            self.draws[device].add_(1 if found_inf is None else found_inf == 0)

    def _alike(
        self, optimizer: Optimizer, group: dict[str, Any], params: Sequence[torch.Tensor]
    ) -> Iterator[list[torch.Tensor]]:
        """Create missing state, and split parameters by the formats of all their tensors."""
        lists: dict[Any, list[torch.Tensor]] = {}
        names = _moments(optimizer, group)
        for param in params:
            state = self._started(optimizer, group, param)
            assert param.grad is not None, "as asked by `step`"
            formats = param.dtype, param.grad.dtype, *(state[name].dtype for name in names)
            lists.setdefault((param.device, formats), []).append(param)
        yield from lists.values()

    def _started(
        self, optimizer: Optimizer, group: dict[str, Any], param: torch.Tensor
    ) -> dict[str, Any]:
        state: dict[str, Any] = optimizer.state[param]
        names = _moments(optimizer, group)
        kept = getattr(optimizer, "moments_dtype", None)
        for name in names:
            if state.get(name) is None:
                dtype = kept or torch.float32
                if dtype == torch.int8:
                    groups = -(-param.numel() // GROUP)
                    state[name + _SCALE] = torch.zeros(groups, device=param.device)
                    dtype = torch.uint8 if name == "exp_avg_sq" else dtype
                state[name] = torch.zeros_like(param, dtype=dtype)
            elif kept is None:  # the engine starts a momentum in the format of its parameter
                state[name] = state[name].float()
        if len(names) == 2 and "step" not in state:
            on_device = group.get("fused") or group.get("capturable") or kept is not None
            state["step"] = torch.zeros((), device=param.device if on_device else "cpu")
        if self._way in CORRECTIONS and param not in self.corrections:
            self.corrections[param] = torch.zeros_like(param, dtype=CORRECTIONS[self._way])
        if param.device not in self.draws:
            self.draws[param.device] = torch.zeros((), dtype=torch.int64, device=param.device)
        if param.dtype == torch.bfloat16 and param.device not in self.lost:
            self.lost[param.device] = self.draws[param.device].new_zeros(COUNTERS)
        return state

    def _update(
        self,
        optimizer: Optimizer,
        group: dict[str, Any],
        params: list[torch.Tensor],
        found_inf: torch.Tensor | None,
        order: dict[Any, int],
    ) -> None:
        device = params[0].device
        states = [optimizer.state[param] for param in params]
        names = _moments(optimizer, group)
        moments = [[state[name] for state in states] for name in names]
        moments += [[]] * (2 - len(moments))
        if names and names[0] + _SCALE in states[0]:
            moments += [[state[name + _SCALE] for state in states] for name in names]
        gradients = [_like(param.grad, param) for param in params if param.grad is not None]
        corrections = [self.corrections[p] for p in params] if self._way in CORRECTIONS else []
        tensors = Tensors(params, gradients, corrections, *moments)
        steps = [state["step"] for state in states if "step" in state]
        numbers = _numbers(group, steps, len(params), device)
        read = Device(
            numbers, self._places_of([order[param] for param in params], device),
            self.draws[device], found_inf, self._seed & (2**63 - 1),
            self.lost.get(device) if params[0].dtype == torch.bfloat16 else None,
        )  # fmt: skip
        update(tensors, _rule(group), read)
        if steps and found_inf is None:
            torch._foreach_add_(steps, 1.0)
        elif found_inf is not None and steps:  # as a list: the host reads a single one on a CPU
            taken = found_inf.eq(0).float()
            torch._foreach_add_(steps, [taken] * len(steps))

    def _places_of(self, places: list[int], device: torch.device) -> torch.Tensor:
        key = (device.index or 0, *places)
        if key not in self._places:
            self._places[key] = torch.tensor(places, device=device)
        return self._places[key]


def _fits(optimizer: Optimizer, group: dict[str, Any], param: torch.Tensor) -> bool:
    """Tell whether all tensors of a parameter are plain, dense and of one layout."""
    if type(param) not in (torch.Tensor, nn.Parameter) or not is_dense(param):
        return False
    grad, state = param.grad, optimizer.state.get(param, {})
    if grad is not None and (grad.is_sparse or grad.dtype not in _GRADIENTS):
        return False
    names = _moments(optimizer, group)
    moments = [state[name] for name in names if state.get(name) is not None]
    if group.get("dampening") and names and not moments:
        return False  # the first step of torch's SGD has no dampening
    return all(moment.stride() == param.stride() for moment in moments)


def _moments(optimizer: Optimizer, group: dict[str, Any]) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(optimizer, "moments", None) or _MOMENTS[type(optimizer)]
    return names if len(names) == 2 or group["momentum"] else ()


def _rule(group: dict[str, Any]) -> Rule:
    decay, maximize = float(group["weight_decay"]), bool(group.get("maximize"))
    if "momentum" in group:
        of_sgd = (float(group["momentum"]), float(group.get("dampening", 0.0)), decay)
        return Rule("sgd", of_sgd, nesterov=bool(group["nesterov"]), maximize=maximize)
    penalty = 0.0 if group["decoupled_weight_decay"] else decay
    settings = (*map(float, group["betas"]), float(group["eps"]), penalty)
    return Rule("adam", settings, maximize=maximize)


def _numbers(
    group: dict[str, Any], steps: list[torch.Tensor], count: int, device: torch.device
) -> torch.Tensor:
    """Return `Device.numbers`, computed in fp64 where the numbers of steps are."""
    rate = group["lr"]
    if not steps:
        if isinstance(rate, torch.Tensor):
            return rate.float().to(device).reshape(1, 1).repeat(count, 3)
        return torch.full((count, 3), float(rate), device=device)
    number = torch.stack(steps).double() + 1
    beta1, beta2 = group["betas"]
    decays = group["decoupled_weight_decay"]
    decay = 1 - rate * group["weight_decay"] if decays else 1.0
    columns = (rate / (1 - beta1**number), (1 - beta2**number).rsqrt(), number * 0 + decay)
    return torch.stack(columns, 1).float().to(device)


def _like(gradient: torch.Tensor, param: torch.Tensor) -> torch.Tensor:
    """Return a gradient with the strides of its parameter."""
    if gradient.stride() == param.stride():
        return gradient
    return torch.empty_like(param, dtype=gradient.dtype).copy_(gradient)
