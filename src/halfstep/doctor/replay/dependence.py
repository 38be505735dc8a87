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
from halfstep.doctor.tensors.inexact import is_inexact

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch

    from halfstep.doctor.bundle.caller import Caller

_DETACH, _NO_GRAD = "detach", "no_grad"
_DETACHES = "aten.detach"
_FLAT = frozenset(f"aten.{name}" for name in ("round", "floor", "ceil", "trunc", "sign", "sgn"))
"""Operators whose derivative is 0 everywhere."""
_BOUNDED = frozenset(f"aten.{name}" for name in ("clamp", "clamp_max", "clamp_min", "hardtanh"))
"""Operators whose derivative is 0 where they change their input."""


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
        self._flat: dict[str, tuple[str, Caller]] = {}
        self.cuts: tuple[Cut, ...] = ()
        self._strays: dict[int, tuple[tuple[int, ...], Caller]] = {}
        self._graphs: dict[int, frozenset[int]] = {}  # strays that autograd follows to a result

    def take(
        self,
        op: str,
        given: Iterable[torch.Tensor],
        made: Sequence[torch.Tensor],
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
        coming, strays = frozenset[str](), frozenset[int]()
        for each in given:
            key = storage_key(each)
            known = self._on.get(key)
            strays |= self._graphs.get(key, frozenset()) if each.requires_grad else frozenset()
            if known:
                coming |= known
                if enabled and op != _DETACHES:
                    self._read(op, each, made, known, caller)
            elif enabled and isinstance(each, nn.Parameter) and each.requires_grad:
                self._strays.setdefault(key, (tuple(each.shape), caller))
                strays |= {key}
        for each in made if op != _DETACHES else ():
            self._graphs[storage_key(each)] = strays if enabled else frozenset()
        for each in made:
            self._write(op, each, coming, caller, enabled=enabled)

    def _read(
        self,
        op: str,
        tensor: torch.Tensor,
        made: Sequence[torch.Tensor],
        known: frozenset[str],
        caller: Caller,
    ) -> None:
        if not tensor.requires_grad:
            for name in known:
                how = self._made.get(storage_key(tensor), (_DETACH, caller))
                self._cuts.setdefault(name, how)
        elif op in _FLAT or (op in _BOUNDED and _is_outside(tensor, made)):
            for name in known:
                self._flat.setdefault(name, (op.removeprefix("aten."), caller))

    def _write(
        self,
        op: str,
        tensor: torch.Tensor,
        coming: frozenset[str],
        caller: Caller,
        *,
        enabled: bool,
    ) -> None:
        key = storage_key(tensor)
        if op == _DETACHES:
            if coming:
                self._made.setdefault(key, (_DETACH, caller))
            return
        self._made.pop(key, None)
        if not coming:
            self._on.pop(key, None)
            return
        self._on[key] = coming
        if not enabled:
            self._made[key] = _NO_GRAD, caller
        elif not is_inexact(tensor):
            self._made[key] = op.removeprefix("aten."), caller

    def end(self, losses: Iterable[torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
        """Complete `cuts` and the strays, at the end of the step.

        Args:
            losses: The losses.
            gradients: The gradients of the parameters that get some, by name.
        """
        keys = [*map(storage_key, losses)]
        trained = frozenset[int]().union(*[self._graphs.get(each, ()) for each in keys])
        self._strays = {key: each for key, each in self._strays.items() if key in trained}
        used = frozenset[str]().union(*[self._on.get(each, ()) for each in keys])
        places: dict[tuple[str, Caller], list[str]] = {}
        for name in sorted(used):
            if name not in gradients and name in self._cuts:
                places.setdefault(self._cuts[name], []).append(name)
            elif name in gradients and name in self._flat and not gradients[name].any():
                places.setdefault(self._flat[name], []).append(name)
        for (how, caller), names in places.items():
            where = site(caller.user_line or caller.line)
            self.cuts += (Cut(tuple(names), how, caller.module, where),)

    def strays(self) -> Iterator[Stray]:
        """Yield the parameters that have no name, and get gradients."""
        for shape, caller in self._strays.values():
            yield Stray(shape, caller.module, site(caller.user_line or caller.line))


def _is_outside(tensor: torch.Tensor, made: Sequence[torch.Tensor]) -> bool:
    """Return whether an operator has changed all elements of a tensor."""
    if len(made) != 1 or made[0].shape != tensor.shape or not tensor.numel():
        return False
    return not bool((made[0] == tensor).any())
