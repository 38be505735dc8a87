"""The names by which the program calls its models, and the places of these calls in its loops.

A change of a mode needs both: "self.net.train()" before the loop over the batches of an epoch. A
name is the source code of the called object: a variable, an attribute or an element of a list. It
is read when the call runs, and counts only if it is that model.
"""

from __future__ import annotations

import ast
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

from halfstep.doctor.record.blocks import call_at, following, loop, outermost
from halfstep.doctor.record.sites import Mark, Site, calling_line, calling_lines, frame_at, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType

    from halfstep.doctor.signals.watched import Watched

_LINES = 64
_DEPTH = 3


@dataclass(frozen=True, slots=True)
class CalledAt:
    """A line that calls a model.

    Attributes:
        name: The source code of the model there.
        site: The line.
        before: For a training call, the innermost loop around it without an evaluation; for
            another call, the outermost loop or "with" around it without a training call. The
            statement of the call, if there is none.
        after: The statement that follows `before` in its block; None for the last one.
        training: Whether the model was in training mode in such a call.
    """

    name: str
    site: Site | None
    before: Site | None
    after: Site | None
    training: bool = True


@dataclass(frozen=True, slots=True)
class ModelName:
    """The names of a model.

    Attributes:
        number: Number of the model.
        name: The name in its first training call, or in another call; "" if unknown.
        training: The line of the first training call; if only calls of other lines ran in
            evaluation mode, the first of these.
        others: The lines of calls without gradients.
        apart: The names of modules that run in the model although it does not contain them, so
            that `train()` of the model does not reach them.
    """

    number: int
    name: str = ""
    training: CalledAt | None = None
    others: tuple[CalledAt, ...] = ()
    apart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UserNames:
    """The names of all models."""

    signal: ClassVar[str] = "names"
    models: tuple[ModelName, ...] = ()

    def of(self, number: int) -> ModelName:
        """Return the names of a model."""
        return next((each for each in self.models if each.number == number), ModelName(number))

    def call(self, place: Site | None) -> CalledAt | None:
        """Return the call without gradients at a line; None if its name is unknown."""
        calls = (each for model in self.models for each in model.others)
        return next((each for each in calls if each.site == place), None)

    def title(self, number: int, kind: str) -> str:
        """Return the name and the class of a model as text: "self.net (ResNet)"."""
        name = self.of(number).name
        return f"{name} ({kind})" if name else kind

    def back_to_training(self, number: int, *, whole: bool = True) -> tuple[str, ...]:
        """Return a change that puts a model into training mode before its training calls.

        Args:
            number: Number of the model.
            whole: Whether modules that the model contains are concerned, too, if others are apart.
        """
        model = self.of(number)
        call = model.training
        if call is None or call.before is None:
            return ("+ model.train()  # before training continues",)
        names = (*([call.name] if whole or not model.apart else []), *model.apart)
        return (
            f"@ {call.before}",
            *(f"+ {name}.train()" for name in names),
            f"  {call.before.text}",
        )


@dataclass(slots=True)
class _Known:
    training: tuple[Mark, str] | None = None
    quiet: tuple[Mark, str] | None = None  # the first training call in evaluation mode
    is_settled: bool = False  # whether a call of the first line ran in evaluation mode
    others: dict[Mark, str] = field(default_factory=dict)
    loud: set[Mark] = field(default_factory=set)  # lines of others that ran in training mode
    evaluated: set[Mark] = field(default_factory=set)
    stacks: set[tuple[Mark, ...]] = field(default_factory=set)
    apart: tuple[str, ...] = ()
    nameless: set[Mark | None] = field(default_factory=set)  # lines in which it has no name


class Names(Signal):
    """Reads the names of models when the loop calls them."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._known: WeakKeyDictionary[nn.Module, _Known] = WeakKeyDictionary()

    def on_model(
        self, module: nn.Module, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> None:
        """Read the name of a model in its first training call."""
        del given, made
        known = self._known.setdefault(module, _Known())
        if known.is_settled or not torch.is_grad_enabled():
            return
        dependent = self.watched.registry.model(module).modes.dependent
        is_quiet = not all(each.training for each in dependent)
        if known.training is not None and not is_quiet:
            return
        mark = calling_line()
        known.is_settled = known.training is not None and known.training[0] == mark
        if known.is_settled or known.quiet is not None or mark in known.nameless:
            return
        frame = frame_at(mark)
        name = _name(module, frame) if frame else ""
        if mark and name:
            known.training = known.training or (mark, name)
            known.quiet = (mark, name) if is_quiet else None
            known.apart = tuple(self._apart(module, name))
        else:
            known.nameless.add(mark)

    def on_evaluation(self, module: nn.Module, mark: Mark | None) -> None:
        """Read the name of a model in a call without gradients, and the lines that led to it."""
        known = self._known.setdefault(module, _Known())
        if mark is not None and mark not in known.others and len(known.others) < _LINES:
            frame = frame_at(mark)
            known.others[mark] = _name(module, frame) if frame else ""
        if module.training and mark is not None:
            known.loud.add(mark)
        elif len(known.stacks) < _LINES:
            lines = calling_lines()
            if lines not in known.stacks:
                known.stacks.add(lines)
                known.evaluated.update(lines)

    def _apart(self, module: nn.Module, name: str) -> Iterator[str]:
        """Yield the names of modules outside of a model that contain what has run in it."""
        mine = {id(each) for each in module.modules()}
        ran = self.watched.registry.model(module).modules
        missing = {id(each) for each in ran if id(each) not in mine}
        for path, inner in _held(module) if missing else ():
            if not missing.isdisjoint(found := {id(each) for each in inner.modules()}):
                missing -= found
                yield name + path

    def freeze(self) -> dict[str, Any]:
        """Return the names."""
        models = self.watched.registry.models
        evaluated = [(set(each.modules()), known.evaluated) for each, known in self._known.items()]
        return {
            UserNames.signal: UserNames(
                tuple(
                    _frozen(
                        models.number(each),
                        known,
                        [
                            line
                            for modules, lines in evaluated
                            if not modules.isdisjoint(each.modules())
                            for line in lines
                        ],
                    )
                    for each, known in self._known.items()
                    if each in models
                )
            )
        }


def _frozen(number: int, known: _Known, evaluated: list[Mark]) -> ModelName:
    training, mark, name = None, None, ""
    first = known.training if known.is_settled else known.quiet or known.training
    if first is not None:
        mark, name = first
        before = loop(mark, _roots(name), evaluated)
        training = CalledAt(name, site(mark), site(before), site(following(before)))
    others = []
    for line, its in known.others.items():
        if its:
            before = outermost(line, _roots(its), [mark] if mark else [])
            after, loud = site(following(before)), line in known.loud
            others.append(CalledAt(its, site(line), site(before), after, loud))
            name = name or its
    return ModelName(number, name, training, tuple(others), known.apart)


def _roots(name: str) -> set[str]:
    """Return the variables in a name."""
    return {*re.findall(r"(?<![\w.\"'])[A-Za-z_]\w*", name)}


def _name(model: nn.Module, frame: FrameType) -> str:
    """Return the source code of a model in the call that a frame runs; "" if it has none there."""
    position = [*frame.f_code.co_positions()][frame.f_lasti // 2]
    call = call_at(frame.f_code.co_filename, position)
    nodes: Iterable[ast.AST] = () if call is None else (call.func, *call.args)
    for node in nodes:
        if isinstance(node, ast.expr) and _value(node, frame) is model:
            return ast.unparse(node)
    return next((name for name, each in frame.f_locals.items() if each is model), "")


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a variable, an attribute or an element, without running any code."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        held = getattr(owner, "__dict__", {})
        inside = dict(owner.named_children()) if isinstance(owner, nn.Module) else {}
        return held.get(node.attr, inside.get(node.attr))
    if isinstance(node, ast.Subscript):
        owner, key = _value(node.value, frame), _value(node.slice, frame)
        if isinstance(owner, nn.ModuleList | nn.Sequential):
            owner = list(owner)
        elif isinstance(owner, nn.ModuleDict):
            owner = dict(owner.items())
        plain = type(owner) in {list, tuple, dict} and isinstance(key, int | str)
        try:
            return owner[key] if plain else None
        except (LookupError, TypeError):
            return None
    return None


def _held(owner: Any, depth: int = _DEPTH) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that an object refers to, but does not contain, with their paths."""
    if isinstance(owner, list | tuple):
        parts = [(f"[{number}]", each) for number, each in enumerate(owner)]
    elif isinstance(owner, dict):
        parts = [(f"[{key!r}]", each) for key, each in owner.items() if isinstance(key, int | str)]
    else:
        own = {*getattr(nn.Module(), "__dict__", ())} if isinstance(owner, nn.Module) else set()
        names = getattr(owner, "__dict__", {})
        parts = [(f".{name}", each) for name, each in names.items() if name not in own]
    for path, each in parts:
        if isinstance(each, nn.Module):
            yield path, each
        elif depth and isinstance(each, list | tuple | dict):
            yield from ((path + more, module) for more, module in _held(each, depth - 1))
