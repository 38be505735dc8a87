"""Optimizers that a line builds again and again over the same parameters, which train on.

A new optimizer has no momentum. If the parameters are those that its predecessor has left, the loop
continues one training; a loop that resets them, such as one of meta-learning, begins another one.
"""

from __future__ import annotations

import weakref
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

from torch.optim import Optimizer

from halfstep.doctor.record.blocks import loop
from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.doctor.signals.state.facts import parameters_of
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from halfstep.doctor.signals.watched import Watched

_LINES = 64
PROBES = 4


@dataclass(frozen=True, slots=True)
class RebuiltOptimizer:
    """A line that builds optimizers.

    Attributes:
        kind: Their class.
        built: Number of optimizers.
        continued: Number of these whose parameters were those that its last optimizer had left.
        steps: Number of steps of the predecessors of these.
        memory: Number of steps over which the momentum averages; 0 without momentum.
        site: The line.
        loop: The innermost loop around it in its function; its statement without one.
    """

    kind: str
    built: int
    continued: int
    steps: int
    memory: float
    site: Site | None
    loop: Site | None = None


@dataclass(frozen=True, slots=True)
class RebuiltOptimizers:
    """The lines that have built several ones over the same parameters."""

    signal: ClassVar[str] = "rebuilt"
    lines: tuple[RebuiltOptimizer, ...] = ()


@dataclass(slots=True, eq=False)
class _Life:
    """One optimizer: a few of its parameters, and their versions after its last step."""

    probes: tuple[weakref.ref[torch.Tensor], ...]
    count: int
    steps: int = 0
    versions: tuple[int, ...] = ()

    def is_continued_by(self, other: _Life) -> bool:
        """Return whether another one has the same parameters, and nothing has written them."""
        mine = [each() for each in self.probes]
        its = [each() for each in other.probes]
        return (
            self.steps > 0
            and self.count == other.count
            and all(a is not None and a is b for a, b in zip(mine, its, strict=True))
            and self.versions == tuple([each._version for each in mine if each is not None])
        )


@dataclass(slots=True)
class _Line:
    kind: str
    memory: float
    built: int = 0
    continued: int = 0
    steps: int = 0
    last: _Life | None = field(default=None)


class Rebuilding(Signal):
    """Follows the optimizers of each line that builds some."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[tuple[str, Mark | None], _Line] = {}
        self._lives: WeakKeyDictionary[Optimizer, _Life] = WeakKeyDictionary()

    def hooks(self) -> Iterator[Hook]:
        """Yield the hook of the constructor of optimizers."""
        yield Hook(Optimizer, "__init__", self.watched.afterwards(self._on_made))

    def _on_made(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        with self.watched.guard.own():
            key = type(optimizer).__name__, calling_line()
            if key not in self._lines and len(self._lines) >= _LINES:
                return
            line = self._lines.setdefault(key, _Line(key[0], _memory(optimizer.defaults)))
            parameters = parameters_of(optimizer)
            stride = max(1, len(parameters) // PROBES)
            probes = tuple(map(weakref.ref, parameters[::stride][:PROBES]))
            life = self._lives[optimizer] = _Life(probes, len(parameters))
            line.built += 1
            if line.last is not None and line.last.is_continued_by(life):
                line.continued += 1
                line.steps += line.last.steps
            line.last = life

    def after_step(self, optimizer: Optimizer) -> None:
        """Note the versions of a few parameters."""
        life = self._lives.get(optimizer)
        if life is not None:
            life.steps += 1
            life.versions = tuple(
                [each._version for probe in life.probes if (each := probe()) is not None]
            )

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        lines = tuple(
            RebuiltOptimizer(
                line.kind,
                line.built,
                line.continued,
                line.steps,
                line.memory,
                site(mark),
                site(loop(mark, set())),
            )
            for (_, mark), line in self._lines.items()
            if line.continued
        )
        return {RebuiltOptimizers.signal: RebuiltOptimizers(lines)}


def _memory(defaults: dict[str, Any]) -> float:
    """Return over how many steps the first moment of an optimizer averages; 0 without one."""
    betas = defaults.get("betas")
    share = betas[0] if isinstance(betas, tuple | list) and betas else defaults.get("momentum", 0)
    return 1 / (1 - share) if isinstance(share, float) and 0 < share < 1 else 0.0
