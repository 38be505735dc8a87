"""What a `with amp.scale_loss(...)` becomes: backwards on a target, and what stood beside them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.migrate.names import argument, assigned, fresh, last_name, used_names
from halfstep.migrate.source import inner
from halfstep.migrate.targets import EngineTarget, TorchTarget
from halfstep.migrate.understanding import constant

if TYPE_CHECKING:
    from halfstep.migrate.program import Program, ScaledLoss
    from halfstep.migrate.render import Edits, Piece
    from halfstep.migrate.understanding import Understanding

BY_HAND = (
    "the scaled loss is used for more than scaled_loss.backward(), which {} does not give away"
)
DIFFERENTIATED = (
    "gradients that can be differentiated again come from engine.grad(...), not from a backward"
)
DELAYED_CHECK = "delay_overflow_check leaves it to the program to skip steps, which {} does itself"


def loss_name(program: Program) -> str:
    """Return the name for a loss that was computed in the argument of `scale_loss`."""
    return fresh("loss", program.names)


@dataclass
class Losses:
    """Writes scaled losses.

    Args:
        about: What the program does; it takes more reasons to leave it.
        target: What takes amp's place.
        edits: Takes the changes.
    """

    about: Understanding
    target: EngineTarget | TorchTarget
    edits: Edits

    def write(self, loss: ScaledLoss, *, hoisted: bool) -> None:
        """Write a `with amp.scale_loss(...)`.

        Args:
            loss: The scaled loss.
            hoisted: Whether the loss has been given a name, as it was computed in the argument.
        """
        about, code = self.about, self.about.program.source.code
        delayed = constant(loss.call, "delay_overflow_check", 5)
        if delayed not in {None, False}:
            about.leave(loss.call, DELAYED_CHECK.format(self.target.called))
        text = loss_name(about.program) if hoisted else code(loss.loss)
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

    def _body(self, loss: ScaledLoss) -> tuple[dict[ast.stmt, ast.Call], bool, ast.AST | None]:
        """Read the body of a `with amp.scale_loss(...)`.

        Returns:
            Its backwards, whether it multiplies the scaled loss by a factor, and a statement that
            uses the scaled loss for anything else, or None.
        """
        found: dict[ast.stmt, ast.Call] = {}
        changed = False
        for statement in loss.statement.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            backward = isinstance(call, ast.Call) and last_name(call.func) == "backward"
            if backward and isinstance(call, ast.Call) and loss.name in used_names(call.func):
                found[statement] = call
            elif loss.name in used_names(statement):
                if not self._only_changes(statement, loss.name):
                    return found, changed, statement
                changed = True  # by a factor, which scaled and true losses have alike
        source = self.about.program.source
        function = source.function(loss.statement) or source.tree
        for node in inner(function):
            if isinstance(node, ast.Name) and node.id == loss.name:
                around = [self.about.program.loss_of(each) for each in source.above(node)]
                if not any(each and each.name == loss.name for each in around):
                    return found, changed, node
        return found, changed, None if found else loss.statement

    def _only_changes(self, statement: ast.stmt, name: str) -> bool:
        """Tell whether all that a statement does with a name is to bind it anew."""
        for node in inner(statement):
            if isinstance(node, ast.Name) and node.id == name:
                holder = self.about.program.source.statement(node)
                if not isinstance(holder, ast.Assign | ast.AugAssign) or (
                    name not in assigned(holder)
                ):
                    return False
        return True

    def _options(self, call: ast.Call) -> list[str]:
        """Return the arguments of a backward that can stay."""
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
        """Return the optimizers whose parameters a loss reaches, or "" for all."""
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
        """Return the name of a loss's own scale."""
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
                f"loss_id={text} is left out: the engine keeps gradients with a scale of their own "
                "apart, where the code below would not find them"
            )
            return None
        return text
