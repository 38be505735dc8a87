"""Replaces each `with amp.scale_loss(...)` by its body, with backward calls for the target."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.migrate.analysis.understanding import constant
from halfstep.migrate.program.names import argument, assigned, fresh, last_name, used_names
from halfstep.migrate.program.source import inner
from halfstep.migrate.rewriting.targets import EngineTarget, TorchTarget

if TYPE_CHECKING:
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.program.program import Program, ScaledLoss
    from halfstep.migrate.program.render import Edits, Piece

BY_HAND = "the scaled loss is used for more than scaled_loss.backward(), but {} does not expose it"
DIFFERENTIATED = (
    "to differentiate through gradients, compute them with engine.grad(...) instead of backward"
)
DELAYED_CHECK = "with delay_overflow_check, the program skips steps; {} skips them itself"


def loss_name(program: Program, loss: ScaledLoss) -> str:
    """Return the new name for a loss that is computed in the argument of `scale_loss`."""
    return fresh("loss", program.names_in(loss.statement))


@dataclass
class Losses:
    """Rewrites scaled losses.

    Args:
        about: The analysis of the program; reasons not to rewrite are added to it.
        target: Writes the code that replaces amp.
        edits: The changes to the program, which are added here.
    """

    about: Understanding
    target: EngineTarget | TorchTarget
    edits: Edits

    def write(self, loss: ScaledLoss, *, hoisted: bool) -> None:
        """Rewrite a `with amp.scale_loss(...)`.

        Args:
            loss: The scaled loss.
            hoisted: Whether the loss is computed in the argument of `scale_loss`, and was therefore
                assigned to a new name.
        """
        if isinstance(loss.statement, ast.Expr):
            self._without_amp(loss, hoisted=hoisted)
            return
        about, code = self.about, self.about.program.source.code
        delayed = constant(loss.call, "delay_overflow_check", 5)
        if delayed not in {None, False}:
            about.leave(loss.call, DELAYED_CHECK.format(self.target.called))
        text = loss_name(about.program, loss) if hoisted else code(loss.loss)
        backwards, changed, odd = self._body(loss)
        if isinstance(self.target, TorchTarget) and (odd or changed):
            pieces: list[Piece] = [f"{loss.name} = {self.target.object}.scale({text})"]
            self.edits.replaced[loss.statement] = [*pieces, loss.statement.body]
            return
        if odd:
            about.leave(odd, BY_HAND.format(self.target.called))
            return
        for statement, call in backwards.items():
            assert isinstance(call.func, ast.Attribute)
            owner = loss.name if changed else text
            written = re.sub(rf"\b{loss.name}\b", lambda _, o=owner: o, code(call.func.value))  # type: ignore[misc]  # a default
            options = self._options(call)
            self.edits.replaced[statement] = [
                self.target.backward_text(
                    written, options, self._reached(loss), self._loss_id(loss)
                )
            ]
        first: list[Piece] = [f"{loss.name} = {text}"] if changed else []
        self.edits.replaced[loss.statement] = [*first, loss.statement.body]

    def _without_amp(self, loss: ScaledLoss, *, hoisted: bool) -> None:
        """Rewrite a plain backward in a branch without amp."""
        program = self.about.program
        text = loss_name(program, loss) if hoisted else program.source.code(loss.loss)
        written = self.target.backward_text(text, self._options(loss.call), "", None)
        self.edits.replaced[loss.statement] = [written]

    def _body(self, loss: ScaledLoss) -> tuple[dict[ast.stmt, ast.Call], bool, ast.AST | None]:
        """Read the body of a `with amp.scale_loss(...)`.

        Returns:
            The statements that call backward, each with its call; whether the body rebinds the
            scaled loss, for example to multiply it by a factor; and a node that backward calls
            cannot replace, or None. Such a node is another use of the scaled loss, or the `with`
            statement if it contains no backward.
        """
        found: dict[ast.stmt, ast.Call] = {}
        changed = False
        assert isinstance(loss.statement, ast.With)
        for statement in loss.statement.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            backward = isinstance(call, ast.Call) and last_name(call.func) == "backward"
            if backward and isinstance(call, ast.Call) and loss.name in used_names(call.func):
                found[statement] = call
            elif loss.name in used_names(statement):
                if self._is_stored_in_vain(statement, loss):
                    self.edits.replaced[statement] = []
                    continue
                if not self._only_changes(statement, loss.name):
                    return found, changed, statement
                changed = True  # a factor applies to the scaled and to the unscaled loss alike
        source = self.about.program.source
        function = source.scope(loss.statement)
        for node in inner(function):
            if isinstance(node, ast.Name) and node.id == loss.name:
                around = [self.about.program.loss_of(each) for each in source.above(node)]
                if any(each and each.name == loss.name for each in around):
                    continue
                if not self._is_logged(node, loss):
                    return found, changed, node
        return found, changed, None if found else loss.statement

    def _is_stored_in_vain(self, statement: ast.stmt, loss: ScaledLoss) -> bool:
        """Tell whether a statement assigns the scaled loss to a name that is never read."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        (target,), value = statement.targets, statement.value
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Name):
            return False
        source = self.about.program.source
        uses = [
            node
            for node in inner(source.scope(statement))
            if isinstance(node, ast.Name) and node.id == target.id
            if source.statement(node) not in self.about.branches.dead
        ]
        uses.sort(key=lambda each: (each.lineno, isinstance(each.ctx, ast.Store)))
        loop = source.loop(statement)
        again = [each for each in uses if loop is not None and loop in source.above(each)]
        behind = [each for each in again if each.lineno > statement.lineno]
        last = max((each.lineno for each in again), default=statement.lineno)
        first = [*again[:1], *[each for each in uses if each.lineno > last][:1]]
        return value.id == loss.name and all(
            isinstance(each.ctx, ast.Store) for each in (*behind, *first)
        )

    def _is_logged(self, node: ast.Name, loss: ScaledLoss) -> bool:
        """Replace a scaled loss by loss times scale if the program only reads its value.

        Return whether the scaled loss was replaced.
        """
        source = self.about.program.source
        parent = source.parent[node]
        read = isinstance(parent, ast.Attribute) and parent.attr in {"item", "detach", "data"}
        if isinstance(self.target, TorchTarget) or not read or not isinstance(loss.loss, ast.Name):
            return False
        name = loss.loss.id
        rebound = any(
            isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
            for each in inner(source.scope(node))
            if loss.statement.lineno <= getattr(each, "lineno", 0) <= node.lineno
        )
        losses = [each for each in self.about.program.losses if each.name == loss.name]
        if rebound or node.lineno < loss.statement.lineno or len(losses) > 1:
            return False
        self.edits.expressions[node] = f"({name} * {self.target.scale()})"
        return True

    def _only_changes(self, statement: ast.stmt, name: str) -> bool:
        """Tell whether a statement uses a name only in assignments to that name."""
        for node in inner(statement):
            if isinstance(node, ast.Name) and node.id == name:
                holder = self.about.program.source.statement(node)
                if not isinstance(holder, ast.Assign | ast.AugAssign) or (
                    name not in assigned(holder)
                ):
                    return False
        return True

    def _options(self, call: ast.Call) -> list[str]:
        """Return the sources of the arguments of a backward that the target supports."""
        code = self.about.program.source.code
        if isinstance(self.target, TorchTarget):
            return [code(each) for each in (*call.args, *call.keywords)]
        options = []
        for each in call.keywords:
            if each.arg == "retain_graph":
                options.append(code(each))
            elif each.arg != "create_graph" or constant(call, "create_graph") is not False:
                self.about.leave(call, DIFFERENTIATED)
        if call.args:
            self.about.leave(call, DIFFERENTIATED)
        return options

    def _reached(self, loss: ScaledLoss) -> str:
        """Return the source of the optimizers whose parameters a loss reaches; "" for all."""
        given = argument(loss.call, "optimizers", 1)
        assert given is not None
        text = self.about.program.source.code(given)
        whole = {each.optimizers_text for each in self.about.trained}
        names = {tuple(each.optimizers) for each in self.about.trained}
        if not self.about.program.several_optimizers or text in whole:
            return ""
        if tuple(loss.optimizers) in names:
            return ""
        listed = isinstance(given, ast.List | ast.Tuple) or self._is_list(text)
        return text if listed else f"[{text}]"

    def _is_list(self, text: str) -> bool:
        return any(
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.List | ast.ListComp)
            and text in map(self.about.program.source.code, node.targets)
            for node in inner(self.about.program.source.tree)
        )

    def _loss_id(self, loss: ScaledLoss) -> str | None:
        """Return the source of `loss_id` if the loss has a scale of its own, else None."""
        given = argument(loss.call, "loss_id", 2)
        several = any(self.about.recipes[each.call].losses != "1" for each in self.about.trained)
        if given is None or not several:
            return None
        text = self.about.program.source.code(given)
        reads = any(
            isinstance(node, ast.Attribute) and node.attr == "grad"
            for node in inner(loss.statement)
        )
        if reads and isinstance(self.target, EngineTarget):
            self.edits.notes[loss.statement].append(
                f"loss_id={text} is left out: with it, the engine would store these "
                "gradients separately, and the code below would not find them in .grad"
            )
            return None
        return text
