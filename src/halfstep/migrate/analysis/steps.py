"""Whose `step` or `zero_grad` a call runs: that of amp's optimizer or of another object."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from halfstep.migrate.program.names import dotted, elements, last_name
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from halfstep.migrate.program.branches import Branches
    from halfstep.migrate.program.program import Program

_OPTIMIZER = re.compile(r"opt(?!ion|s$)|adam|sgd|solver|^o[pt]?_?\w?$", re.IGNORECASE)
_NO_OPTIMIZER = re.compile(
    r"sched|lr_|_lr|^lr|warm|prof|writer|logger|ema|env|timer|bar$|anneal|schdr|tracker|swa",
    re.IGNORECASE,
)
_MAKES_SCHEDULER = re.compile(r"sched|LR$|lr_|warm", re.IGNORECASE)
Whose = Literal["amp", "outside", "other", "unknown"]


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A call of `step` or `zero_grad` on an optimizer that amp handles.

    Attributes:
        statement: The statement of the call, or the loop over optimizers that contains only it.
        call: The call.
        owner: The source of the optimizer.
        loop: The source of the optimizers that this loop iterates over, or None without a loop.
    """

    statement: ast.stmt
    call: ast.Call
    owner: str
    loop: str | None = None


class Owners:
    """Finds out whose `step` or `zero_grad` a call runs.

    Args:
        program: The parsed program.
        branches: The branches that exist only for amp.
    """

    def __init__(self, program: Program, branches: Branches) -> None:
        self.program = program
        self.branches = branches
        self._made: dict[str, list[ast.expr]] = {}
        for node in inner(program.source.tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._made.setdefault(program.source.code(target), []).append(node.value)

    def whose(self, call: ast.Call) -> Whose:
        """Return whose `step` or `zero_grad` a call runs.

        Returns:
            "amp" for an optimizer that amp handles, "outside" for another optimizer, "other" for
            another object such as a scheduler, and "unknown" if it may be amp's optimizer.
        """
        assert isinstance(call.func, ast.Attribute)
        owner = call.func.value
        text = self.program.source.code(owner)
        if self._is_amps(call, owner, text):
            return "amp"
        if call.func.attr == "zero_grad" and (text in self.program.models or text == "self"):
            return "amp" if text != "self" else "other"
        name = last_name(owner)
        if _NO_OPTIMIZER.search(name) or name in {"self", ""} or isinstance(owner, ast.Call):
            return "other" if name or not isinstance(owner, ast.Subscript) else "unknown"
        made = [each for each in self._made.get(text, ()) if isinstance(each, ast.Call)]
        if any(_MAKES_SCHEDULER.search(last_name(each.func)) for each in made):
            return "other"
        if made and all(self._makes_optimizer(each) for each in made):
            return "outside"
        return "unknown" if _OPTIMIZER.search(name) else "other"

    def move(self, call: ast.Call) -> Move | None:
        """Return the `Move` of a call, or None if the call is not a statement of its own."""
        source = self.program.source
        assert isinstance(call.func, ast.Attribute)
        owner = source.code(call.func.value)
        statement = source.parent[call]
        if not isinstance(statement, ast.Expr):
            return None
        loop = source.parent[statement]
        if isinstance(loop, ast.For) and dotted(loop.target) == owner and not loop.orelse:
            over = source.code(loop.iter)
            if len(loop.body) == 1:
                return Move(loop, call, owner, over)
        return Move(statement, call, owner)

    def _is_amps(self, call: ast.Call, owner: ast.expr, text: str) -> bool:
        optimizers = self.program.optimizers
        if text in optimizers:
            return not self._is_local(call, text)
        if isinstance(owner, ast.Subscript):
            return self.program.source.code(owner.value) in optimizers
        for loop in self.program.source.above(call):
            if isinstance(loop, ast.For) and dotted(loop.target) == text:
                over = [self.program.source.code(each) for each in elements(loop.iter)]
                return all(each in optimizers for each in over)
        return False

    def _is_local(self, call: ast.Call, text: str) -> bool:
        """Tell whether a function creates another optimizer with the name of one of amp's."""
        function = self.program.source.function(call)
        if function is None or "." in text or self.program.uses_amp(function):
            return False
        return any(
            isinstance(node, ast.Assign) and text in map(self.program.source.code, node.targets)
            for node in inner(function)
        )

    def _makes_optimizer(self, made: ast.Call) -> bool:
        path = dotted(made.func) or ""
        return path.startswith(("torch.optim.", "optim.")) or last_name(made.func) in _OPTIMIZERS


_OPTIMIZERS = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "RAdam", "BertAdam"}
