"""Weights of a loss's terms that are computed from the loop's counter, and are always 0."""

from __future__ import annotations

import ast
import linecache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from halfstep.doctor.record.blocks import nodes_at, parsed
from halfstep.doctor.record.sites import Mark, Site, calling_line, frame_at, site
from halfstep.doctor.signals.signal import Signal
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import CodeType

    from halfstep.doctor.signals.signal import Heard
    from halfstep.doctor.signals.watched import Watched

_COMPUTES = (ast.BinOp, ast.Call, ast.IfExp)
_ROUNDS = 3
_COUNTING = frozenset({"range", "trange", "enumerate"})


@dataclass(frozen=True, slots=True)
class ZeroFactor:
    """A line that multiplies a scalar in an autograd graph by 0 each time.

    Attributes:
        count: How often.
        factor: The source code of the factor.
        counter: The variable of the loop that it is computed from.
        site: The line.
    """

    count: int
    factor: str
    counter: str
    site: Site | None


@dataclass(frozen=True, slots=True)
class ZeroFactors:
    """All such lines whose factor is computed from the counter of a loop around it."""

    signal: ClassVar[str] = "zero_factors"
    lines: tuple[ZeroFactor, ...] = ()


@dataclass(slots=True, eq=False)
class _Product:
    """A product in the program: how often its number was 0, and whether it was another one."""

    line: Mark
    position: tuple[int | None, ...]
    zeros: int = 0
    varies: bool = False


class Factors(Signal):
    """Counts the products of scalars with numbers that are 0."""

    def __init__(self, watched: Watched) -> None:
        super().__init__(watched)
        self._products: dict[tuple[CodeType, int], _Product] = {}

    def on_call(self, heard: Heard) -> None:
        """Count a product of a loss's term with a number."""
        args, result = heard.call.args, heard.result
        if heard.name != "mul" or len(args) != 2 or type(args[1]) not in {int, float}:
            return
        if not isinstance(result, torch.Tensor) or not result.requires_grad or result.ndim:
            return
        line = calling_line()
        frame = frame_at(line)
        if line is None or frame is None:
            return
        key = frame.f_code, frame.f_lasti
        product = self._products.get(key)
        if product is None:
            position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
            product = self._products[key] = _Product(line, position)
        product.zeros += not args[1]
        product.varies |= bool(args[1])

    def freeze(self) -> dict[str, Any]:
        """Return the lines that multiply by 0 only."""
        lines = [
            ZeroFactor(each.zeros, *found, site(each.line))
            for each in self._products.values()
            if not each.varies and (found := _planned(each)) is not None
        ]
        return {ZeroFactors.signal: ZeroFactors(tuple(lines))}


def _planned(product: _Product) -> tuple[str, str] | None:
    """Return the factor of a product that the counter of a loop gives, and the counter."""
    around = [*nodes_at(product.line[0], product.line[1])]
    tree = parsed("".join(linecache.getlines(product.line[0])))
    counters = _of_counters(tree) if tree is not None and product.zeros else {}
    for each in around:
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult):
            here = each.lineno, each.end_lineno, each.col_offset, each.end_col_offset
            for factor in (each.left, each.right) if here == product.position else ():
                counter = _uses(factor, counters)
                if counter is not None:
                    return ast.unparse(factor), counter
    return None


def _of_counters(tree: ast.AST) -> dict[str, str]:
    """Return what a file computes from counters: variables, attributes, and results of functions.

    Args:
        tree: The file.

    Returns:
        The counter of each name; counters are variables of loops, and what the file counts up.
    """
    nodes = [*ast.walk(tree)]
    found = {name: name for each in nodes for name in _counters(each)}
    values: list[tuple[str, ast.expr]] = []
    for each in nodes:
        if isinstance(each, ast.Assign):
            values += [(name, each.value) for target in each.targets if (name := _name(target))]
        elif isinstance(each, ast.FunctionDef):
            returns = [one.value for one in ast.walk(each) if isinstance(one, ast.Return)]
            values += [(each.name, value) for value in returns if value is not None]
    for _ in range(_ROUNDS):
        for name, value in values:
            counter = None if name in found else _uses(value, found)
            if counter is not None and any(isinstance(each, _COMPUTES) for each in ast.walk(value)):
                found[name] = counter
    return found


def _name(node: ast.expr) -> str:
    """Return a variable's name, or that of an attribute; "" for other nodes."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _counters(node: ast.AST) -> Iterator[str]:
    """Yield the variable that a loop counts with, or that a statement counts up."""
    if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
        yield _name(node.target)
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call):
        return
    called = node.iter.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    target = node.target
    if name == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    if name in _COUNTING and isinstance(target, ast.Name):
        yield target.id


def _uses(node: ast.expr, counters: Mapping[str, str]) -> str | None:
    """Return the counter that an expression uses; None if it uses none."""
    names = (_name(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute))
    return next((counters[each] for each in names if each in counters), None)
