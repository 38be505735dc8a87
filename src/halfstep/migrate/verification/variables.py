"""The variables of a program while it is executed abstractly."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import dotted
from halfstep.migrate.verification.values import MODEL, NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.migrate.program.program import Program
    from halfstep.migrate.program.source import Function
    from halfstep.migrate.verification.values import Value

Values = dict[str, "Value"]


@dataclass
class Frame:
    """A function, or the top level of the module, while it is executed.

    Attributes:
        function: The function; None for the module.
        values: The value of each variable and of each `self.x`; None after a `return`.
        covered: Whether the current statement is under autocast.
        constant: Whether gradients are off, so that no result is a loss's.
        repeated: Whether the current statement may run several times.
        returned: What the `return`s so far return: the values of a tuple, or one value.
        ends: The values at each `return` so far.
        added: What has been added to a variable without an assignment, as by `x.append(y)`.
        outer: The names that are declared `global` or `nonlocal`.
        jumps: The values at each `break` and `continue` of the innermost loop.
    """

    function: Function | None
    values: Values | None
    covered: bool = False
    constant: bool = False
    repeated: bool = False
    returned: set[tuple[Value, ...]] = field(default_factory=set)
    ends: list[Values | None] = field(default_factory=list)
    added: Values = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)
    jumps: list[Values | None] = field(default_factory=list)


def key_of(node: ast.AST) -> str | None:
    """Return the variable that an expression belongs to: `a` for `a.b[0]`, but `self.a`."""
    while isinstance(node, ast.Subscript):
        node = node.value
    path = dotted(node)
    if path is None:
        return None
    root, _, rest = path.partition(".")
    return f"self.{rest.partition('.')[0]}" if root == "self" and rest else root


class Variables:
    """Reads and writes variables.

    Args:
        program: The program; `program.models` are the expressions that refer to models.
        kept: Other expressions that refer to an object that never contains a model or a tensor.

    Attributes:
        shared: The value of each variable of the module and of each attribute of a class, together
            with its earlier values.
    """

    def __init__(self, program: Program, kept: set[str]) -> None:
        self.program = program
        self._kept = kept | program.models | program.imports.names | {"self"}
        self.shared: dict[tuple[ast.AST | None, str], Value] = {}

    def read(self, key: str, frame: Frame, values: Values | None = None) -> Value:
        """Return the value of a variable, in `values` or else in the frame."""
        known = frame.values if values is None else values
        base = MODEL if key in self.program.models else NOTHING
        if known is not None and key in known:
            return base | known[key]
        return base | self.shared.get(self._place(key, frame), NOTHING)

    def bind(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Assign a value to a target; of `x.y` and `x[0]`, add it to `x`."""
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self.bind(each, value, frame)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, frame)
        elif (key := key_of(target)) is not None and key == dotted(target):
            self.write(key, value, frame)
        else:
            self.add(target, value, frame)

    def write(self, key: str, value: Value, frame: Frame) -> None:
        """Assign a value to a variable."""
        if frame.values is not None:
            frame.values[key] = value
        if key.startswith("self.") or frame.function is None or key in frame.outer:
            self._share(key, value, frame)

    def add(self, node: ast.expr, value: Value, frame: Frame) -> None:
        """Add a value to the variable that an expression belongs to, as `x.append(y)` does."""
        key = key_of(node)
        if not value or key is None or not self._kept.isdisjoint({key, dotted(node)}):
            return
        if frame.values is not None and key not in frame.values:
            self._share(key, value, frame)
        self.write(key, self.read(key, frame) | value, frame)
        frame.added[key] = frame.added.get(key, NOTHING) | value

    def joined(self, ways: Iterable[Values | None], frame: Frame) -> Values | None:
        """Return the values after several ways through the program; None if none ends here."""
        known = [each for each in ways if each is not None]
        if not known:
            return None
        keys: set[str] = set().union(*known)
        return {key: NOTHING.union(*(self.read(key, frame, one) for one in known)) for key in keys}

    def _share(self, key: str, value: Value, frame: Frame) -> None:
        place = self._place(key, frame)
        if value:
            self.shared[place] = self.shared.get(place, NOTHING) | value

    def _place(self, key: str, frame: Frame) -> tuple[ast.AST | None, str]:
        """Return where a variable is kept between calls: in the module, or in a class."""
        if key.startswith("self.") and frame.function is not None:
            return self.program.source.class_(frame.function), key
        return None, key
