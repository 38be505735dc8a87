"""Finds where a traced step loses the gradients of parameters whose values its loss depends on.

The values of parameters are followed from operator to operator, by storage, whether or not autograd
follows them. A gradient is lost where an operator that runs with gradients reads such a value from
a tensor that requires none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from halfstep.doctor.record import Cut, Stray
from halfstep.doctor.record.sites import site
from halfstep.doctor.replay.memory import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import torch

    from halfstep.doctor.bundle.caller import Caller

_DETACH, _NO_GRAD = "detach", "no_grad"


class Dependence:
    """Follows the values of parameters.

    Args:
        parameters: Names of the parameters, by key of their storage.

    Attributes:
        cuts: Where the step loses gradients.
    """

    def __init__(self, parameters: Mapping[int, str]) -> None:
        self._on = {key: frozenset({name}) for key, name in parameters.items()}
        self._made: dict[int, tuple[str, Caller]] = {}
        self._cuts: dict[str, tuple[str, Caller]] = {}
        self.cuts: tuple[Cut, ...] = ()
        self._strays: dict[int, tuple[tuple[int, ...], Caller]] = {}

    def take(
        self,
        op: str,
        given: Iterable[torch.Tensor],
        made: Iterable[torch.Tensor],
        caller: Caller,
        *,
        enabled: bool,
    ) -> None:
        """Follow an operator of the forward.

        Args:
            op: Name of the operator.
            given: The tensors in its arguments.
            made: The tensors in its result.
            caller: Its caller.
            enabled: Whether it runs with gradients.
        """
        coming = frozenset[str]()
        for each in given:
            key = storage_key(each)
            known = self._on.get(key)
            if not known:
                if enabled and isinstance(each, nn.Parameter) and each.requires_grad:
                    self._strays.setdefault(key, (tuple(each.shape), caller))
                continue
            coming |= known
            if enabled and op != "aten.detach" and not each.requires_grad:
                how = self._made.get(key, (_DETACH, caller))
                for name in known:
                    self._cuts.setdefault(name, how)
        for each in made:
            key = storage_key(each)
            if not coming:
                if op != "aten.detach":
                    self._on.pop(key, None)
                continue
            self._on[key] = coming
            if op == "aten.detach":
                self._made.setdefault(key, (_DETACH, caller))
            elif not enabled:
                self._made[key] = _NO_GRAD, caller
            elif not (each.is_floating_point() or each.is_complex()):
                self._made[key] = op.removeprefix("aten."), caller
            else:
                self._made.pop(key, None)

    def end(self, losses: Iterable[torch.Tensor], reached: set[str]) -> None:
        """Complete `cuts`, at the end of the step.

        Args:
            losses: The losses.
            reached: Names of the parameters that get gradients.
        """
        used = frozenset[str]().union(*[self._on.get(storage_key(each), ()) for each in losses])
        places: dict[tuple[str, Caller], list[str]] = {}
        for name in sorted(used - reached):
            if name in self._cuts:
                places.setdefault(self._cuts[name], []).append(name)
        for (how, caller), names in places.items():
            where = site(caller.user_line or caller.line)
            self.cuts += (Cut(tuple(names), how, caller.module, where),)

    def strays(self) -> Iterator[Stray]:
        """Yield the trainable parameters that have no name."""
        for shape, caller in self._strays.values():
            yield Stray(shape, caller.module, site(caller.user_line or caller.line))
