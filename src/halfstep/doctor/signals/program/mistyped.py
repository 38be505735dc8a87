"""Attributes that a program sets on parameters and optimizers of torch, and that nothing reads.

Python accepts any name: `parameter.require_grad = False` freezes nothing, and `optimizer.lr = 0.01`
changes no rate, which is in `optimizer.param_groups`.
"""

from __future__ import annotations

import ast
import difflib
import linecache
from typing import TYPE_CHECKING

from halfstep.doctor.record.blocks import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn
    from torch.optim import Optimizer

_ATTRIBUTES = ("requires_grad",)
_ALIKE = 0.9


def mistyped(
    modules: Iterable[nn.Module], optimizers: Iterable[Optimizer], files: Iterable[str]
) -> Iterator[tuple[str, str, str, int]]:
    """Yield an attribute that has no effect, what has one, and the line that sets it.

    Args:
        modules: The models of a program.
        optimizers: Its optimizers.
        files: Its files, in which the line is.
    """
    meant = {**dict(_of_parameters(modules)), **dict(_of_optimizers(optimizers))}
    for file in files if meant else ():
        tree = parsed("".join(linecache.getlines(file)))
        nodes = [each for each in ast.walk(tree) if isinstance(each, ast.Attribute)] if tree else []
        read = {ast.unparse(each) for each in nodes if isinstance(each.ctx, ast.Load)}
        for node in nodes:
            is_set = isinstance(node.ctx, ast.Store) and node.attr in meant
            if is_set and ast.unparse(node) not in read:
                yield node.attr, meant[node.attr], file, node.lineno


def _of_parameters(modules: Iterable[nn.Module]) -> Iterator[tuple[str, str]]:
    names = {name for module in modules for each in module.parameters() for name in vars(each)}
    for name in names:
        for known in difflib.get_close_matches(name, _ATTRIBUTES, cutoff=_ALIKE):
            yield name, known


def _of_optimizers(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, str]]:
    for each in optimizers:
        if type(each).__module__.startswith("torch.optim."):
            for name in vars(each).keys() & each.defaults.keys():
                yield name, f'param_groups[0]["{name}"]'
