"""Samples of distributions through which a loss passes no gradient on to their parameters.

`sample()` has no gradient, and that of `torch.normal` is 0; `rsample()` has one. It is meant where
the sample goes into the loss, unless the log-probability of a sample carries the gradient, as in
policy gradients. The graphs of a few backward passes are searched for the parameters and for the
samples of `torch.normal`. A sample that a model draws is followed when the last step is replayed:
it is drawn with `rsample()` there, and its gradient is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.autograd.graph import get_gradient_edge
from torch.distributions import Distribution

from halfstep.doctor.record.sites import Mark, Site, calling_line, site
from halfstep.doctor.signals.signal import Hook, Signal, defining
from halfstep.doctor.signals.values.samples import is_sampled
from halfstep.doctor.tensors.nesting import tensors_in
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import nn

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

NODES = 20_000
_SEARCHES = 12  # per line
_LINES = 16
_NAMES = 16
_TRACKED = 256
_NORMAL = "normal"
_SHAPES_ONLY = re.compile(r".*_like$|new_.*")
_COMPARES = frozenset({"sub", "rsub", "__sub__", "__rsub__", "subtract", "kl_div", "cross_entropy"})


@dataclass(frozen=True, slots=True)
class Draw:
    """A line that draws samples whose parameters require gradients, without a gradient.

    Attributes:
        kind: Class of the distribution; "normal" for `torch.normal`.
        count: Number of samples.
        searched: Number of samples for which the graph of the next backward pass was searched.
        reached: Number of these whose parameters the loss depends on in another way, too.
        enters: Whether a sample goes into a loss.
        parameters: Names of parameters, up to 16, on which those of the distribution depend.
        site: The line.
    """

    kind: str
    count: int
    searched: int
    reached: int
    enters: bool
    parameters: tuple[str, ...]
    site: Site | None


@dataclass(frozen=True, slots=True)
class Draws:
    """All such lines, without those whose samples or distributions have a log-probability."""

    signal: ClassVar[str] = "drawn"
    lines: tuple[Draw, ...] = ()


@dataclass(slots=True)
class _Line:
    kind: str
    shape: torch.Size
    count: int = 0
    searched: int = 0
    reached: int = 0
    enters: bool = False
    scored: bool = False  # as a target, or by a log-probability that the program computes itself
    leaves: tuple[torch.Tensor, ...] = ()


@dataclass(slots=True)
class _Pending:
    """A sample whose backward pass has not run: its line, the nodes of its parameters, its own."""

    line: _Line
    nodes: set[Any]
    own: Any


class DrawSignal(Signal):
    """Follows the samples of some calls of each line."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lines: dict[tuple[Mark | None, str], _Line] = {}
        self._scored: set[tuple[str, torch.Size]] = set()
        self._pending: list[_Pending] = []
        self._tracked: dict[int, tuple[torch.Tensor, _Line, set[int]]] = {}
        self._nested = False

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of the methods of distributions, and of `torch.normal`."""
        for name, told in (
            ("sample", self._on_sample),
            ("rsample", self._on_rsample),
            ("log_prob", self._on_log_prob),
        ):
            for kind in defining(name, Distribution):
                yield Hook(kind, name, self.watched.here(told))
        yield Hook(torch, _NORMAL, self.watched.here(self._on_normal))

    # ------------------------------------------------------------ calls

    def _on_sample(self, original: Any, owner: Distribution, /, *args: Any, **kwargs: Any) -> Any:
        if self._nested or not torch.is_grad_enabled():
            return original(owner, *args, **kwargs)
        self._nested = True
        try:
            if self.watched.guard.is_own:
                return self._again(original, owner, *args, **kwargs)
            result = original(owner, *args, **kwargs)
        finally:
            self._nested = False
        with self.watched.guard.own():
            given = [each for each in _parameters(owner) if each.requires_grad]
            if given and owner.has_rsample:
                self._drawn(type(owner).__name__, given, result)
        return result

    def _again(self, original: Any, owner: Distribution, /, *args: Any, **kwargs: Any) -> Any:
        """Draw a sample of a replay, with a gradient that tells whether the loss depends on it."""
        line = self._lines.get((calling_line(), type(owner).__name__))
        if line is None:
            return original(owner, *args, **kwargs)
        result = owner.rsample(*args, **kwargs)

        def note(gradient: torch.Tensor) -> None:
            line.enters |= bool(gradient.any())

        if result.requires_grad:
            result.register_hook(note)
        return result

    def _on_rsample(self, original: Any, owner: Distribution, /, *args: Any, **kwargs: Any) -> Any:
        result = original(owner, *args, **kwargs)
        if not self._nested and isinstance(result, torch.Tensor) and result.requires_grad:
            self._score(owner, result)
        return result

    def _on_log_prob(
        self, original: Any, owner: Distribution, value: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(value, torch.Tensor) and torch.is_grad_enabled():
            with self.watched.guard.own():
                self._score(owner, value)
        return original(owner, value, *args, **kwargs)

    def _score(self, owner: Distribution, value: torch.Tensor) -> None:
        if len(self._scored) < _TRACKED and any(e.requires_grad for e in _parameters(owner)):
            self._scored.add((type(owner).__name__, value.shape))

    def _on_normal(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not self._nested and torch.is_grad_enabled() and not self.watched.guard.is_own:
            with self.watched.guard.own():
                given = [each for each in tensors_in((args, kwargs)) if each.requires_grad]
                if given:
                    self._drawn(_NORMAL, given, result)
        return result

    def _drawn(self, kind: str, given: list[torch.Tensor], result: torch.Tensor) -> None:
        key = calling_line(), kind
        if key not in self._lines and len(self._lines) >= _LINES:
            return
        line = self._lines.setdefault(key, _Line(kind, result.shape))
        line.count += 1
        if not is_sampled(line.count) or line.searched >= _SEARCHES:
            return
        nodes = {get_gradient_edge(each).node for each in given}
        if not line.leaves:
            line.leaves = tuple(_leaves(nodes))[:_NAMES]
        # One sample of each line waits for its backward pass.
        self._pending = [each for each in self._pending if each.line is not line]
        self._pending.append(_Pending(line, nodes, result.grad_fn))
        if not result.requires_grad and len(self._tracked) < _TRACKED:
            own = {each.untyped_storage().data_ptr() for each in given}
            self._tracked[id(result)] = result, line, own

    # ------------------------------------------------------------ the use of samples by the loop

    def on_call(self, heard: Heard) -> None:
        """Follow a sample through a call of the loop."""
        if self._tracked and not _SHAPES_ONLY.match(heard.name):
            made = [each for each in tensors_in(heard.result) if each.is_floating_point()]
            compares = heard.name in _COMPARES or heard.name.lower().endswith("loss")
            self._follow(heard.given, made, compares=compares)

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Follow a sample through a call of a model."""
        del module
        if self._tracked:
            self._follow(given, made)

    def _follow(
        self,
        given: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        *,
        compares: bool = False,
    ) -> None:
        for each in given:
            known = self._tracked.get(id(each))
            if known is None:
                continue
            _, line, own = known
            others = {other.untyped_storage().data_ptr() for other in given if other is not each}
            is_target = compares and any(other.requires_grad for other in given)
            line.scored |= is_target or bool(own & others)
            for result in made:
                if result.requires_grad:
                    line.enters = True
                elif len(self._tracked) < _TRACKED:
                    self._tracked[id(result)] = result, line, own

    def on_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """Search the graph of the losses for the parameters of the samples."""
        self._tracked.clear()
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        seen, users = _graph(losses)
        for each in pending:
            line, uses = each.line, users.get(each.own, [])
            line.searched += 1
            line.reached += bool(each.nodes & seen)
            if each.own is not None and uses:
                line.enters = True
                line.scored |= any(each.nodes & _inputs(use) for use in uses)

    def freeze(self) -> dict[str, Any]:
        """Return the lines."""
        names = {id(each): name for name, each in self.watched.registry.names().items()}
        lines = tuple(
            Draw(
                line.kind,
                line.count,
                line.searched,
                line.reached,
                line.enters,
                tuple(names[id(each)] for each in line.leaves if id(each) in names),
                site(mark),
            )
            for (mark, _), line in self._lines.items()
            if not (line.scored or any(_is_alike(line, *each) for each in self._scored))
        )
        return {Draws.signal: Draws(lines)}


def _is_alike(line: _Line, kind: str, shape: torch.Size) -> bool:
    """Return whether a value that has a log-probability may be a sample of a line."""
    is_narrow = min(len(line.shape), len(shape)) <= 1
    return kind == line.kind and (is_narrow or shape[-1] == line.shape[-1])


def _parameters(owner: Distribution) -> Iterator[torch.Tensor]:
    """Yield the tensors of a distribution, and of those that it is made of."""
    for each in vars(owner).values():
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, Distribution):
            yield from _parameters(each)


def _inputs(node: Any) -> set[Any]:
    return {each for each, _ in node.next_functions if each is not None}


def _graph(losses: Iterable[torch.Tensor]) -> tuple[set[Any], dict[Any, list[Any]]]:
    """Return the nodes of losses, not going through `torch.normal`, and the users of its nodes."""
    waiting: list[Any] = [each.grad_fn for each in losses if each.grad_fn is not None]
    seen = set(waiting)
    users: dict[Any, list[Any]] = {}
    while waiting and len(seen) < NODES:
        node = waiting.pop()
        if type(node).__name__.startswith("NormalBackward"):
            continue
        below = _inputs(node)
        for each in below:
            if type(each).__name__.startswith("NormalBackward"):
                users.setdefault(each, []).append(node)
        waiting += below - seen
        seen |= below
    return seen, users


def _leaves(nodes: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the leaves of the graph below some nodes."""
    waiting, seen = [*nodes], {*nodes}
    while waiting and len(seen) < NODES:
        node = waiting.pop()
        if hasattr(node, "variable"):
            yield node.variable
        below = _inputs(node) - seen
        seen |= below
        waiting += below
