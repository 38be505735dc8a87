"""Rewrites the calls and names of Apex inside expressions.

amp's protocol (initialize, scale_loss, step) is rewritten in `rewrite.py`, a whole statement at a
time. This file rewrites the names that have a counterpart in any expression.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.migrate.analysis.passed_on import NOTE as STATE_ONLY
from halfstep.migrate.analysis.passed_on import saves, takes_state
from halfstep.migrate.program.names import calls, dotted
from halfstep.migrate.program.render import changed_code
from halfstep.migrate.program.source import Function
from halfstep.migrate.rewriting import casts
from halfstep.migrate.rewriting.counterparts import CALLS, CLASSES, MODULES, SAME_ARGUMENTS, Written
from halfstep.migrate.rewriting.leftovers import COUNTERPART, NOT_CALLED, leftover
from halfstep.migrate.rewriting.targets import MASTERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halfstep.migrate.program.program import Program
    from halfstep.migrate.rewriting.targets import Target

_SCALERS = re.compile(r"apex\.amp(\._amp_state)+\.loss_scalers$")


@dataclass
class Expressions:
    """Rewrites the expressions of a program.

    Args:
        program: The parsed program.
        target: Writes the code that replaces amp.
        amp: Whether names from `apex.amp` are rewritten too.
        losses: The source of `num_losses`.

    Attributes:
        changed: Maps an expression to its new source; no expression is inside another.
        notes: Statements, each with a note on what was left out or not changed.
        amp_left: Uses of amp that have no counterpart.
    """

    program: Program
    target: Target
    amp: bool
    losses: str = "1"
    changed: dict[ast.AST, str] = field(default_factory=dict)
    notes: list[tuple[ast.stmt, str]] = field(default_factory=list)
    amp_left: list[ast.AST] = field(default_factory=list)

    def read(self, skipped: Iterable[ast.AST]) -> None:
        """Rewrite all expressions outside of `skipped`, which is rewritten elsewhere as a whole."""
        self._skipped = set(skipped)
        self._visit(self.program.source.tree)

    def code(self, node: ast.AST) -> str:
        """Return the source of an expression, with the expressions rewritten so far in it."""
        return changed_code(self.program.source, node, self.changed)

    def note(self, node: ast.AST, reason: str) -> None:
        """Add a note to the statement of a node."""
        self.notes.append((self.program.source.statement(node), reason))

    def _visit(self, node: ast.AST) -> None:
        if node in self._skipped or isinstance(node, ast.Import | ast.ImportFrom):
            return
        answer = self._asked(node) if self.amp else None
        if answer is None:
            function = node.func if isinstance(node, ast.Call) else None
            apexs = self.program.imports.qualified(function) is not None
            for child in ast.iter_child_nodes(node):
                if child is not function or not apexs:
                    self._visit(child)
            answer = self._translated(node)
            if answer is None and apexs and function is not None:
                self._visit(function)
        if answer is not None:
            start, end = self.program.source.span(node)
            for each in [*self.changed]:
                first, last = self.program.source.span(each)
                if start <= first and last <= end:
                    del self.changed[each]
            self.changed[node] = answer
        elif isinstance(node, ast.Name | ast.Attribute):
            self._leftover(node)

    def _translated(self, node: ast.AST) -> str | None:
        name = None
        if isinstance(node, ast.Call):
            name = self.program.imports.qualified(node.func)
        cast = casts.expression(self.program, node)
        if cast is not None:
            return cast
        if self.amp:
            found = self._of_amp(node, name)
            if found is not None:
                return found
        if isinstance(node, ast.Call) and name is not None and name.startswith(MODULES):
            translate = CALLS.get(name.rpartition(".")[2])
            if translate is not None:
                written = translate(self.target.steps_whole, node, self.code)
                return self._written(node, written)
        if isinstance(node, ast.Name | ast.Attribute):
            return self._class(node)
        return None

    def _class(self, node: ast.Name | ast.Attribute) -> str | None:
        """Translate a class in a call of `isinstance`, or a layer that is assigned or passed on."""
        above = self.program.source.above(node)
        parent = next(each for each in above if not isinstance(each, ast.Tuple))
        asked = isinstance(parent, ast.Call) and dotted(parent.func) == "isinstance"
        module, _, name = (self.program.imports.qualified(node) or "").rpartition(".")
        aliased = isinstance(parent, ast.Assign | ast.keyword) and self._has_same_arguments(name)
        if f"{module}.".startswith(MODULES) and name in CLASSES and (asked or aliased):
            self.target.imports["import torch"] = None
            return CLASSES[name]
        return None

    def _has_same_arguments(self, name: str) -> bool:
        """Tell whether torch's class takes the arguments of Apex's that the program uses."""
        if name not in SAME_ARGUMENTS:
            return False
        given = {each.arg for call in calls(self.program.source.tree) for each in call.keywords}
        return given.isdisjoint(SAME_ARGUMENTS[name])

    def _written(self, node: ast.Call, written: Written) -> str | None:
        for reason in written.reasons:
            self.note(node, reason)
        if written.text is None:
            if not written.reasons:
                return None
            self._skipped.add(node.func)
            return None
        for line in written.imports:
            self.target.imports[line] = None
        return written.text

    def _of_amp(self, node: ast.AST, name: str | None) -> str | None:
        """Translate `amp.state_dict`, `amp.load_state_dict` and `amp.master_params`."""
        if isinstance(node, ast.Call):
            if name in {"apex.amp.state_dict", "apex.amp.load_state_dict"}:
                function = f"{self.target.object}.{name.rpartition('.')[2]}"
                arguments = [self.code(each) for each in (*node.args, *node.keywords)]
                return f"{function}({', '.join(arguments)})"
            if name == "apex.amp.master_params" and node.args:
                return MASTERS.format(self.code(node.args[0]))
        return None

    def _scales(self, node: ast.AST) -> str | None:
        """Translate an expression that reads a loss scale."""
        qualified = self.program.imports.qualified
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._scale(node.func) if node.func.attr == "loss_scale" else None
        if isinstance(node, ast.Attribute) and node.attr == "_loss_scale":
            return self._scale(node) if isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.Attribute | ast.Subscript):
            owner = node.value
            if isinstance(owner, ast.Call) and qualified(owner.func) == "apex.amp.state_dict":
                whole = self.program.source.code(node)
                read = self.program.source.code(owner)
                return self.target.scales(self.losses) + whole.removeprefix(read)
        return None

    def _scale(self, node: ast.Attribute) -> str | None:
        """Translate `_amp_state.loss_scalers[0]._loss_scale`."""
        owner = node.value
        if not isinstance(owner, ast.Subscript):
            return None
        name = self.program.imports.qualified(owner.value) or ""
        return self.target.scale() if _SCALERS.match(name) else None

    def _asked(self, node: ast.AST) -> str | None:
        """Translate tests on amp to `True` or `False`, reads of its scales, and amp as an argument.

        The tests ask whether Apex is installed, as in `amp is not None`, or has a certain name.
        """
        qualified = self.program.imports.qualified
        scale = self._scales(node)
        if scale is not None:
            return scale
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            right = node.comparators[0]
            none = isinstance(right, ast.Constant) and right.value is None
            if none and qualified(node.left) in {"apex", "apex.amp"}:
                return str(isinstance(node.ops[0], ast.IsNot | ast.NotEq))
            if qualified(right) == "apex.amp.__dict__" and isinstance(node.ops[0], _MEMBERSHIP):
                return str(isinstance(node.ops[0], ast.In))
        if isinstance(node, ast.Name | ast.Attribute) and qualified(node) in _MODULES:
            parent = self.program.source.parent[node]
            asked = isinstance(parent, ast.If | ast.IfExp) and parent.test is node
            if asked or isinstance(parent, ast.BoolOp | ast.Assert) or _negated(parent):
                return "True"
            return self._passed_on(node, parent)
        return None

    def _passed_on(self, node: ast.Name | ast.Attribute, parent: ast.AST) -> str | None:
        """Replace amp as an argument by the engine or scaler, if the function only uses its state.

        Return None if that is not known.
        """
        if self.program.follows_amp(node):
            return "None"  # what gets it now uses the engine or scaler itself
        if isinstance(parent, ast.keyword) and self._is_passed(parent):
            return self.target.object
        if takes_state(self.program, node):
            return self.target.object
        function = saves(self.program, node)
        if function is None:
            return None
        self.note(node, STATE_ONLY.format(function, self.target.called))
        return self.target.object

    def _is_passed(self, node: ast.keyword) -> bool:
        """Tell whether amp is passed on after `amp.initialize` in the same function."""
        source = self.program.source
        if self.program.imports.qualified(node.value) != "apex.amp":
            return False
        homes = [each for each in self.program.initializes if each.function is not None]
        return any(
            source.function(node) is each.function and node.lineno > each.statement.lineno
            for each in homes
        )

    def _leftover(self, node: ast.Name | ast.Attribute) -> None:
        """Record a name of Apex that was not rewritten; of `a.b.c`, only the whole chain."""
        parent = self.program.source.parent[node]
        if isinstance(parent, ast.Attribute) or node in self._skipped:
            return
        name = self.program.imports.qualified(node)
        if name is None:
            return
        if isinstance(getattr(node, "ctx", None), ast.Store):
            if name in _MODULES and self._is_none(parent):
                return
            if name.startswith("apex.amp") or name == "apex":
                self.amp_left.append(node)
        elif name.startswith("apex.amp") or name == "apex":
            if name == "apex" and isinstance(parent, ast.keyword):
                return
            self.amp_left.append(node)
        else:
            module, _, last = name.rpartition(".")
            reason = leftover(name)
            if f"{module}.".startswith(MODULES) and last in CALLS:
                other = COUNTERPART.format(CLASSES[last]) if last in CLASSES else ""
                reason = NOT_CALLED.format(name, other)
            if reason is not None:
                self.note(node, reason)

    def _is_none(self, statement: ast.AST) -> bool:
        """Tell whether a statement is an `amp = None` for the case that Apex is not installed."""
        if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)):
            return False
        above = list(self.program.source.above(statement))
        handler = any(isinstance(each, ast.ExceptHandler) for each in above)
        return handler or not any(isinstance(each, ast.If | Function) for each in above)


_MODULES = {"apex", "apex.amp"}
_MEMBERSHIP = ast.In | ast.NotIn


def _negated(node: ast.AST) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
