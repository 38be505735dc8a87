"""A copy of an optimizer, its state and its parameters, whose steps change nothing of the program.

Only optimizers that hold no other objects can be copied: one that wraps another optimizer would
step the program's parameters.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

import torch

from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.formats.dtypes import HALVES

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch.optim import Optimizer

_PLAIN = (bool, int, float, str, bytes, torch.dtype, torch.device, type(None))
_OWN = {"state", "param_groups", "defaults", "step"}  # A scheduler puts a `step` on its optimizer.


class CannotBeTakenError(Exception):
    """The steps cannot be taken again; the message says why."""


class OptimizerCopy:
    """A copy of an optimizer.

    Args:
        optimizer: The optimizer.
        exact: Whether the copy keeps half-precision parameters and their state in fp32.
        only: The parameters that it has; None for all.

    Attributes:
        parameters: The copies of the parameters, by identity of the originals.

    Raises:
        CannotBeTakenError: If the optimizer holds objects that cannot be copied.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        exact: bool,
        only: Collection[torch.Tensor] | None = None,
    ) -> None:
        kind = type(optimizer).__name__
        others = {name: each for name, each in vars(optimizer).items() if name not in _OWN}
        hooks = {name for name, each in others.items() if isinstance(each, OrderedDict)}
        if not all(_is_plain(each) for name, each in others.items() if name not in hooks):
            raise CannotBeTakenError(f"{kind} holds objects that doctor cannot copy")
        self._exact = exact
        mine = parameters_of(optimizer)
        if not {id(each) for each in mine}.issuperset(map(id, optimizer.state)):
            raise CannotBeTakenError(f"{kind} has a state that belongs to no parameter")
        mine = mine if only is None else [*only]
        self._formats = {id(each): each.dtype for each in mine}
        self.parameters = {
            id(each): self._copied(each).requires_grad_(each.requires_grad) for each in mine
        }
        self._copy: Optimizer = object.__new__(type(optimizer))
        vars(self._copy).update(others | {name: OrderedDict() for name in hooks})
        self._copy.defaults = dict(optimizer.defaults)
        self._copy.param_groups = [self._group(each) for each in optimizer.param_groups]
        self._copy.state = defaultdict(
            dict,
            {
                self.parameters[id(each)]: {name: self._copied(one) for name, one in state.items()}
                for each, state in optimizer.state.items()
                if id(each) in self.parameters
            },
        )

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value)
        is_half = value.dtype in HALVES
        return value.detach().float() if self._exact and is_half else value.detach().clone()

    def _group(self, group: dict[str, Any]) -> dict[str, Any]:
        mine = [each for each in group["params"] if id(each) in self.parameters]
        parameters = [self.parameters[id(each)] for each in mine]
        others = {name: each for name, each in group.items() if name != "params"}
        return {**{name: self._copied(each) for name, each in others.items()}, "params": parameters}

    def set_rate(self, rate: float, *, always: bool = False) -> None:
        """Give all groups a learning rate.

        Args:
            rate: The rate of the first group; others are in proportion, unless it has none above 0.
            always: Whether to do so if a group has a rate above 0.
        """
        groups = [each for each in self._copy.param_groups if "lr" in each]
        now = [float(each["lr"]) for each in groups]
        if always or not any(each > 0 for each in now):
            for each, one in zip(groups, now, strict=True):
                each["lr"] = rate * one / now[0] if now[0] > 0 else rate

    def leaves(self, form: torch.dtype | None = None) -> dict[int, torch.Tensor]:
        """Return the parameters for a forward pass, by identity of the originals.

        Args:
            form: Their format; None for that of the originals.
        """
        return {
            key: each
            if each.dtype == (form or self._formats[key])
            else each.detach().to(form or self._formats[key]).requires_grad_(each.requires_grad)
            for key, each in self.parameters.items()
        }

    def state(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the state of the copy of a parameter."""
        state: dict[str, Any] = self._copy.state[self.parameters[id(parameter)]]
        return state

    @torch.no_grad()
    def round(self, form: torch.dtype) -> None:
        """Round the parameters to a format, without a change of their own."""
        for each in self.parameters.values():
            each.copy_(each.to(form))

    @torch.no_grad()
    def update(self, gradients: dict[int, torch.Tensor], norm: float | None) -> None:
        """Make a step.

        Args:
            gradients: The gradients, by identity of the originals.
            norm: The largest norm of all gradients; larger ones are clipped. None for no limit.
        """
        mine = {key: each for key, each in gradients.items() if key in self.parameters}
        factor = 1.0
        if norm is not None and mine and not any(each.is_sparse for each in mine.values()):
            total = torch.stack([each.float().norm() for each in mine.values()]).norm().item()
            factor = min(1.0, norm / total) if total > 0 else 1.0
        for key, gradient in mine.items():
            parameter = self.parameters[key]
            parameter.grad = (gradient.to(parameter.dtype) * factor).detach()
        step = type(self._copy).step
        # torch wraps the step of each class once, to run the hooks that a program has registered.
        original = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
        with torch.enable_grad():
            original(self._copy)
        for each in self.parameters.values():
            each.grad = None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)
