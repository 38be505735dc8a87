"""Follows modules that the program casts to half precision, and possibly back to fp32, in place.

`model.half()` rounds the parameters themselves. A later `model.float()` makes them fp32 again, but
does not bring the lost digits back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from halfstep.doctor.record import HalfCast, RoundTrip
from halfstep.doctor.record.sites import Mark, calling_line, site
from halfstep.doctor.record.source import statement
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.tensors.summary import is_finite
from halfstep.formats import format_name
from halfstep.formats.dtypes import HALVES
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from halfstep.doctor.signals.watched import Watched

_COMPARED = 8  # tensors of two loaded states
_ELEMENTS = 64  # of each of them


@dataclass(slots=True)
class _Followed:
    """A module that the loop has cast to half precision at least once."""

    halved: tuple[Mark | None, torch.dtype] | None = None
    trips: int = 0


@dataclass(slots=True)
class _Line:
    """A line that casts modules: the most trips of one of them, and the steps before trips."""

    most: int
    first: int
    last: int


@dataclass(slots=True)
class _Cast:
    """A line that casts modules.

    Attributes:
        steps_before: Number of optimizer steps before the first cast.
        is_trained: Whether an optimizer updates the module.
        owners: The steps of each optimizer that updates it then, by the optimizer's number.
        overflowed: The lowest numbers of the buffers that the cast made non-finite, by name.
    """

    steps_before: int
    is_trained: bool = False
    owners: dict[int, int] = field(default_factory=dict)
    overflowed: dict[str, float] = field(default_factory=dict)


class Casts(Signal):
    """Collects the casts of modules to half precision, with or without a cast back to fp32."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._halved: dict[tuple[Mark | None, torch.dtype, str], _Cast] = {}
        self._followed: WeakKeyDictionary[nn.Module, _Followed] = WeakKeyDictionary()
        self._lines: dict[tuple[Mark | None, torch.dtype, str, bool], _Line] = {}
        self._loaded: WeakKeyDictionary[nn.Module, tuple[torch.Tensor, int]] = WeakKeyDictionary()
        self._loads: dict[tuple[Mark | None, torch.dtype, str], _Line] = {}

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the methods of a module that cast it."""
        for name in ("half", "bfloat16", "float", "to"):
            yield Hook(nn.Module, name, self.watched.here(self._on_cast))
        yield Hook(nn.Module, "load_state_dict", self.watched.here(self._on_load))

    def _on_load(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        is_outside = self.watched.is_outside()
        result = original(module, *args, **kwargs)
        with self.watched.guard.own():
            state = args[0] if args else kwargs.get("state_dict")
            if is_outside and isinstance(state, Mapping):
                self._load(module, state)
        return result

    def _load(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Note that a trained module in fp32 gets other weights in half precision than before."""
        given = [each for each in state.values() if _is_half(each)][:_COMPARED]
        if not given or format_of(module) != torch.float32:
            return
        if not self.watched.registry.owners(module):
            return
        values = torch.cat([each.detach().flatten()[:_ELEMENTS].float().cpu() for each in given])
        before, count = self._loaded.get(module, (values, 0))
        same = torch.equal(values, before)
        self._loaded[module] = values, count + (not same)
        if same:  # Such as weights that a program starts from, again and again.
            return
        steps = self.watched.grammar.made
        key = calling_line(), given[0].dtype, type(module).__name__
        line = self._loads.setdefault(key, _Line(0, steps, steps))
        line.most, line.last = max(line.most, count + 1), steps

    def _on_cast(self, original: Any, module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if not self.watched.is_outside():
            return original(module, *args, **kwargs)
        before, buffers = format_of(module), dict(module.named_buffers())
        result = original(module, *args, **kwargs)
        with self.watched.guard.own():
            self._cast(
                module,
                before,
                buffers,
                steps=self.watched.grammar.made,
                owners=self.watched.registry.owners(module),
                mark=calling_line(),
            )
        return result

    def _cast(
        self,
        module: nn.Module,
        before: torch.dtype | None,
        buffers: Mapping[str, torch.Tensor],
        *,
        steps: int,
        owners: Sequence[int],
        mark: Mark | None,
    ) -> None:
        """Record that the loop has cast a module.

        Args:
            module: The module, after the cast.
            before: The format of its parameters before the cast, from `format_of`.
            buffers: Its buffers before the cast, by name.
            steps: Number of optimizer steps before the cast.
            owners: Numbers of the optimizers that update parameters of the module.
            mark: The line of the cast.
        """
        is_trained = bool(owners)
        after = format_of(module)
        if after == before or before is None or after is None:
            return
        followed = self._followed.setdefault(module, _Followed())
        if after in HALVES:
            followed.halved = mark, after
            cast = self._halved.setdefault((mark, after, type(module).__name__), _Cast(steps))
            cast.is_trained |= is_trained
            cast.overflowed |= _overflowed(buffers, module)
            for each in owners:
                cast.owners.setdefault(each, self.watched.registry.steps_of([each]))
        elif followed.halved is not None and before == followed.halved[1]:
            key = *followed.halved, type(module).__name__, is_trained
            followed.trips, followed.halved = followed.trips + 1, None
            line = self._lines.setdefault(key, _Line(0, steps, steps))
            line.most, line.last = max(line.most, followed.trips), steps

    def freeze(self) -> dict[str, Any]:
        """Return the casts, those that are undone and the other ones."""
        steps = self.watched.grammar.made
        return {"trips": tuple(self._trips(steps)), "casts": tuple(self._for_good(steps))}

    def _trips(self, steps: int) -> Iterator[RoundTrip]:
        """Yield the lines that cast a module, which is cast back later.

        Args:
            steps: Number of optimizer steps that the program made.
        """
        loads = {(*key, True): line for key, line in self._loads.items()}
        for lines, by_load in ((self._lines, False), (loads, True)):
            for (mark, form, kind, is_trained), line in lines.items():
                yield RoundTrip(
                    kind=kind,
                    format=format_name(form),
                    count=line.most,
                    steps_before=line.last,
                    steps_after=steps - line.first,
                    is_trained=is_trained,
                    site=site(mark),
                    by_load=by_load,
                )

    def _for_good(self, steps: int) -> Iterator[HalfCast]:
        """Yield the lines that cast a module that is not cast back, in the order of their lines.

        Args:
            steps: Number of optimizer steps that the program made.
        """
        back = {(mark, form) for mark, form, _, _ in self._lines}
        found = [
            HalfCast(
                kind,
                format_name(form),
                each.is_trained,
                each.steps_before,
                self._steps_after(each, steps),
                at,
                statement(mark),
                each.overflowed,
            )
            for (mark, form, kind), each in self._halved.items()
            if (mark, form) not in back and (at := site(mark)) is not None
        ]
        yield from sorted(found, key=lambda each: (each.site.file, each.site.line, each.kind))

    def _steps_after(self, cast: _Cast, steps: int) -> int:
        if not cast.owners:
            return steps - cast.steps_before
        return self.watched.registry.steps_of(cast.owners) - sum(cast.owners.values())

    def trained(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that an optimizer updates these parameters."""
        moved = set(map(id, parameters))
        for module, followed in self._followed.items():
            if followed.halved and any(id(each) in moved for each in module.parameters()):
                cast = self._halved[*followed.halved, type(module).__name__]
                cast.is_trained = True
                cast.owners.clear()  # All steps from then on count.


def _overflowed(before: Mapping[str, torch.Tensor], module: nn.Module) -> dict[str, float]:
    """Return the lowest numbers of the finite buffers that a cast made non-finite, by name."""
    return {
        name: before[name].min().item()
        for name, each in module.named_buffers()
        if name in before and not is_finite(each) and is_finite(before[name])
    }


def _is_half(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in HALVES


def format_of(module: nn.Module) -> torch.dtype | None:
    """Return the format of a module's first floating-point parameter; None without one."""
    return next((each.dtype for each in module.parameters() if each.is_floating_point()), None)
