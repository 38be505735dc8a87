"""Entries of a checkpoint that a program saves, and does not read when it resumes its training.

The source shows the expression that is saved under each name, and which names a load reads. What
the expression is when the file is loaded shows whether anything is lost: a best score that begins
again, or an average of the weights that is new.
"""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.internals import weak_storage
from halfstep.doctor.record.blocks import nodes_at, parsed
from halfstep.doctor.record.sites import Mark, Site, calling_line, frame_at, site
from halfstep.doctor.signals.ledgers.followers import address
from halfstep.doctor.signals.signal import Hook, Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from torch.multiprocessing.reductions import StorageWeakRef

    from halfstep.doctor.signals.watched import Watched

_MOST = 16  # loads
_TRAINED = 3  # steps after a load
_STATE = "state_dict"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that is not restored.

    Attributes:
        key: Its name in the file.
        variable: The name of the loaded file in the program.
        saved: The expression that is saved, such as "self.best" or "average.state_dict()".
        value: The number in the file; "" for a state.
        now: The number of the program when it loads the file; "" for a state.
        steps: Number of steps of an optimizer since then.
        site: The line that loads the file.
    """

    key: str
    variable: str
    saved: str
    value: str
    now: str
    steps: int
    site: Site | None


@dataclass(frozen=True, slots=True)
class UnreadEntries:
    """All such entries."""

    signal: ClassVar[str] = "entries"
    found: tuple[Entry, ...] = ()


class Entries(Signal):
    """Compares the numbers and states in files with those of the program that loads them."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._lost: list[tuple[Mark, int, tuple[str, str, str, str, str]]] = []
        self._loads = 0
        self._saved: dict[int, StorageWeakRef] = {}  # memory of saved states, by address

    def hooks(self) -> Iterator[Hook]:
        """Yield the hooks of what saves and loads a file."""
        yield Hook(torch, "save", self.watched.here(self._on_save))
        yield Hook(torch, "load", self.watched.here(self._on_file))

    def _on_save(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        with self.watched.guard.own():
            value = args[0] if args else kwargs.get("obj")
            states = value.values() if value is not None and _is_of_training(value) else ()
            for state in states:
                tensor = _first(state)
                if tensor is not None and (key := address(tensor)):
                    self._saved[key] = weak_storage(tensor)
        return original(*args, **kwargs)

    def _lives(self, module: torch.nn.Module) -> bool:
        """Return whether the state of a module was saved from this module itself."""
        tensor = _first(module.state_dict())
        saved = None if tensor is None else self._saved.get(address(tensor))
        return saved is not None and not saved.expired()

    def _on_file(self, original: Any, /, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        with self.watched.guard.own():
            mark = calling_line()
            if mark is not None and self._loads < _MOST and _is_of_training(result):
                self._loads += 1
                frame = frame_at(mark)
                if frame is not None:
                    found = _lost_in(mark, frame, result, self._lives)
                    self._lost += [(mark, self._steps(), each) for each in found]
        return result

    def _steps(self) -> int:
        return sum(each.steps for each in self.watched.registry.optimizers.notes)

    def freeze(self) -> dict[str, Any]:
        """Return the entries without which the training has gone on."""
        found = {
            (mark, each[0]): Entry(*each, self._steps() - steps, site(mark))
            for mark, steps, each in self._lost
            if self._steps() >= steps + _TRAINED
        }
        return {UnreadEntries.signal: UnreadEntries(tuple(found.values()))}


def _first(state: Any) -> torch.Tensor | None:
    """Return the first tensor of a state; None if it has none."""
    values = state.values() if isinstance(state, Mapping) else ()
    return next((each for each in values if isinstance(each, torch.Tensor)), None)


def _is_of_training(value: Any) -> bool:
    """Return whether a file contains the state of an optimizer, with which a training goes on."""
    return type(value) is dict and any(
        isinstance(each, Mapping) and {"state", "param_groups"} <= each.keys()
        for each in value.values()
    )


def _lost_in(
    mark: Mark, frame: FrameType, file: dict[Any, Any], lives: Callable[[torch.nn.Module], bool]
) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, variable, saved expression and numbers of the entries that are not restored.

    Args:
        mark: The line of the load.
        frame: Its frame.
        file: The content of the file.
        lives: Returns whether the state of a module was saved from this module itself, which then
            goes on with what it has.
    """
    tree = parsed("".join(linecache.getlines(mark[0])))
    loads = [each for each in nodes_at(mark[0], mark[1]) if isinstance(each, ast.Assign)]
    target = loads[-1].targets[0] if loads else None
    if tree is None or not isinstance(target, ast.Name):
        return
    nodes = [*ast.walk(tree)]
    saved, read = _saved(nodes), _read(nodes)
    around = [each for each in nodes_at(mark[0], mark[1]) if isinstance(each, ast.FunctionDef)]
    inside = [*ast.walk(around[-1])] if around else nodes
    if _is_used_whole(inside, target.id):
        return
    for key, value in file.items():
        expression = saved.get(key)
        if key in read or expression is None:
            continue
        function = expression.func if isinstance(expression, ast.Call) else None
        owner = function.value if isinstance(function, ast.Attribute) else expression
        if _is_set_after(mark, owner, inside):
            continue
        now, text = _value(owner, frame), ast.unparse(expression)
        is_state = function is not None or isinstance(now, torch.Tensor)
        if _is_state_lost(value, now, lives) and (function or _is_running(nodes, owner)):
            yield key, target.id, text, "", ""
        if is_state:
            continue
        begins_again = _is_number(now) and _is_number(value) and now != value
        if begins_again and _is_carried(nodes, owner) and _is_start(nodes, owner, now):
            yield key, target.id, text, f"{value:.4g}", f"{now:.4g}"


def _is_state_lost(value: Any, now: Any, lives: Callable[[torch.nn.Module], bool]) -> bool:
    """Return whether a module, or a tensor that has just begun, has other values than a file."""
    if isinstance(now, torch.nn.Module):
        return _differs(value, now) and not lives(now)
    is_new = isinstance(now, torch.Tensor) and bool((now == now.flatten()[:1]).all())
    return is_new and _is_other(value, now)


def _saved(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Return the variables and the states that are saved, by their names in a file."""
    found: dict[str, ast.expr] = {}
    for node in nodes:
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            function = value.func if isinstance(value, ast.Call) else None
            is_state = isinstance(function, ast.Attribute) and function.attr == _STATE
            is_plain = isinstance(value, ast.Name | ast.Attribute)
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                if key.value in found or not (is_state or is_plain):
                    found[key.value] = ast.Constant(None)  # several ones, or another expression
                else:
                    found[key.value] = value
    return {key: each for key, each in found.items() if not isinstance(each, ast.Constant)}


def _read(nodes: list[ast.AST]) -> set[str]:
    """Return the texts of a file that are not only names of entries that are written."""
    written = {id(key) for each in nodes if isinstance(each, ast.Dict) for key in each.keys}
    written |= {
        id(each.slice)
        for each in nodes
        if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Store)
    }
    return {
        each.value
        for each in nodes
        if isinstance(each, ast.Constant)
        and isinstance(each.value, str)
        and id(each) not in written
    }


def _is_used_whole(nodes: list[ast.AST], name: str) -> bool:
    """Return whether a variable is used in another way than by the names of its entries."""
    by_name = {
        id(each.value) for each in nodes if isinstance(each, ast.Subscript | ast.Attribute)
    } - {
        id(each.value)
        for each in nodes
        if isinstance(each, ast.Attribute) and each.attr in {"items", "values", "copy"}
    }
    return any(
        isinstance(each, ast.Name)
        and each.id == name
        and isinstance(each.ctx, ast.Load)
        and id(each) not in by_name
        for each in nodes
    )


def _is_carried(nodes: list[ast.AST], expression: ast.expr) -> bool:
    """Return whether a program compares a variable with what it assigns to it, as a best score."""
    text = ast.unparse(expression)
    compared = {
        ast.unparse(part)
        for each in nodes
        if isinstance(each, ast.Compare)
        for part in (each.left, *each.comparators)
    }
    values = [value for target, value in _assigned(nodes) if target == text]
    return any(
        text in {ast.unparse(part) for part in ast.walk(each) if isinstance(part, ast.expr)}
        if isinstance(each, ast.Call)
        else text in compared and not isinstance(each, ast.Constant)
        for each in values
    )


def _is_start(nodes: list[ast.AST], expression: ast.expr, value: float) -> bool:
    """Return whether a number is one with which a variable begins."""
    text = ast.unparse(expression)
    numbers = [
        value.operand if isinstance(value, ast.UnaryOp) else value
        for target, value in _assigned(nodes)
        if target == text
    ]
    return math.isinf(value) or any(
        isinstance(each, ast.Constant) and each.value == abs(value) for each in numbers
    )


def _is_set_after(mark: Mark, owner: ast.expr, nodes: list[ast.AST]) -> bool:
    """Return whether the function of a load sets a variable after the load, before it trains."""
    text = ast.unparse(owner)
    after = [each for each in nodes if isinstance(each, ast.stmt) and each.lineno > mark[1]]
    loops = [each for each in after if isinstance(each, ast.For | ast.While)]
    updates = {id(each) for one in loops for each in ast.walk(one)}
    before = [each for each in after if id(each) not in updates]
    return any(target == text for target, _ in _assigned(before))


def _is_running(nodes: list[ast.AST], owner: ast.expr) -> bool:
    """Return whether a program computes a tensor from what it was, as running statistics."""
    text = ast.unparse(owner)
    written = [each.func for each in nodes if isinstance(each, ast.Call)]
    targets: list[ast.expr] = [each.target for each in nodes if isinstance(each, ast.AugAssign)]
    targets += [
        each.value
        for each in written
        if isinstance(each, ast.Attribute) and each.attr.endswith("_")
    ]
    return text in map(ast.unparse, targets) or any(
        target == text and text in {ast.unparse(part) for part in ast.walk(value)}
        for target, value in _assigned(nodes)
    )


def _is_other(value: Any, tensor: torch.Tensor) -> bool:
    """Return whether a file has other values for a tensor."""
    is_like = isinstance(value, torch.Tensor) and value.shape == tensor.shape
    return is_like and not torch.equal(value.to(tensor), tensor)


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is assigned, and the value; each part of `one, other = 1, 2`."""
    for each in nodes:
        if isinstance(each, ast.AnnAssign) and each.value is not None:
            yield ast.unparse(each.target), each.value
        for target in each.targets if isinstance(each, ast.Assign) else ():
            value = each.value  # type: ignore[attr-defined]
            parts = [(target, value)]
            if isinstance(target, ast.Tuple):
                are_pairs = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
                values = value.elts if are_pairs else [value] * len(target.elts)
                parts = [*zip(target.elts, values, strict=True)]
            yield from ((ast.unparse(one), its) for one, its in parts)


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Return the value of a variable or of an attribute where it is loaded; None if unknown."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, frame)
        kept = getattr(owner, "__dict__", {})
        modules = kept.get("_modules", {}) if isinstance(owner, torch.nn.Module) else {}
        return kept.get(node.attr, modules.get(node.attr))
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _differs(state: Any, module: torch.nn.Module) -> bool:
    """Return whether a state has the names of a module's, and other values."""
    mine = module.state_dict()
    if not isinstance(state, Mapping) or state.keys() != mine.keys():
        return False
    return any(_is_other(each, mine[name]) for name, each in state.items())
