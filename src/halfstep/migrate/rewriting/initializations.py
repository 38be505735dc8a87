"""Replaces each `amp.initialize` by the line that creates the engine or scaler.

For inference (no optimizer), the call is removed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from halfstep.migrate.analysis.understanding import SEVERAL
from halfstep.migrate.rewriting.guards import (
    CHANGES,
    RETURNS,
    SOMETIMES,
    branches_without,
    called_for_amp,
    changing,
    guards,
    repeated,
    returned_before,
    simple,
)
from halfstep.migrate.rewriting.targets import EngineTarget, TorchTarget

if TYPE_CHECKING:
    from halfstep.migrate.analysis.recipes import RecipeArgument
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.program.program import Initialize
    from halfstep.migrate.program.render import Edits

NOT_THERE = (
    "the arguments of amp.initialize are not plain names, so the code without amp cannot refer to "
    "them"
)
MADE = "the arguments of amp.initialize create a model or an optimizer; assign it to a name first"
IN_FP32 = "amp.initialize without an optimizer: `{}` runs in fp32 here, except under autocast"
_PAIR = ("models", "optimizers")


@dataclass(frozen=True)
class Initializations:
    """Writes the replacement of each `amp.initialize`.

    Args:
        about: The analysis of the program; reasons not to rewrite are added to it.
        target: Writes the code that replaces amp.
        edits: The changes to the program, which are added here.
    """

    about: Understanding
    target: EngineTarget | TorchTarget
    edits: Edits

    def write(self, given: Initialize) -> None:
        """Replace an `amp.initialize`, or add the reason not to rewrite the program."""
        if given.optimizers:
            self._with_optimizers(given)
        else:
            self._without_optimizer(given)

    def _with_optimizers(self, given: Initialize) -> None:
        about = self.about
        recipe = about.recipes[given.call]
        self.edits.notes[given.statement] += self.target.reasons(recipe)
        tests = guards(about, given)
        obstacle = self._obstacle(given, tests)
        if obstacle is not None:
            about.leave(*obstacle)
            return
        alone = simple(about, given, tests)
        rest = self._rest(given)
        if alone is not None and rest is None:
            when = about.program.source.code(alone.test)
            self.edits.replaced[alone] = [self.target.setup(given, recipe, when)]
            self.edits.notes[alone] += self.edits.notes.pop(given.statement)
            return
        setup = self._setup(given, recipe, rest)
        if setup is None:
            return
        self.edits.replaced[given.statement] = [*setup]
        for test in tests:
            ends, no_else = branches_without(about, test)
            named = self._named_without(given, no_else=no_else)
            if named is None:
                about.leave(given.call, NOT_THERE)
                return
            off = self.target.setup(named, recipe, "False")
            for each in ends:
                if off not in self.edits.after[each]:
                    self.edits.after[each].append(off)
            if no_else:
                lines = off.replace("\n", "\n    ")
                self.edits.after[test].append(f"else:\n    {lines}")

    def _obstacle(self, given: Initialize, tests: list[ast.If]) -> tuple[ast.AST, str] | None:
        """Return why no engine or scaler can be created here, with the node of the reason."""
        about = self.about
        if changing(about, given, tests):
            return given.call, CHANGES
        sometimes = called_for_amp(about, given)
        if sometimes is not None:
            return sometimes, SOMETIMES
        returned = returned_before(about, given, tests)
        if returned is not None:
            return returned, RETURNS
        engine = isinstance(self.target, EngineTarget)
        if engine and not self.target.object.startswith("self.") and repeated(about, given):
            return given.call, SEVERAL.format(about.called)
        return None

    def _without_optimizer(self, given: Initialize) -> None:
        """Remove an `amp.initialize` for inference; keep the assignment or return of the models."""
        rest = None
        if isinstance(given.statement, ast.Return):
            rest = f"return {given.models_text}"
        elif isinstance(given.statement, ast.Assign):
            bound = self.about.program.source.code(given.statement.targets[0])
            same = _bare(bound) == _bare(given.models_text)
            rest = None if same else f"{bound} = {given.models_text}"
        self.edits.replaced[given.statement] = [rest] if rest else []
        if self.about.recipes[given.call].level != "O0":
            self.edits.notes[given.statement].append(IN_FP32.format(given.models_text))

    def _setup(
        self, given: Initialize, recipe: RecipeArgument, rest: str | None
    ) -> list[str] | None:
        """Return the lines that replace `amp.initialize`; None if the program is not rewritten."""
        made = "(" in given.models_text + given.optimizers_text
        if rest is None or isinstance(self.target, TorchTarget) or not made:
            return [self.target.setup(given, recipe, None), *([rest] if rest else [])]
        pair = self._bound_to_a_pair(given)
        if pair is None:
            self.about.leave(given.call, MADE)
            return None
        return [rest, self.target.setup(pair, recipe, None)]

    def _named_without(self, given: Initialize, *, no_else: bool) -> Initialize | None:
        """Return `given` with names that are also defined in branches without amp, or None."""
        texts = [*given.models, *given.optimizers]
        if isinstance(self.target, TorchTarget) or all(map(str.isidentifier, texts)):
            return given
        simple_names = [each.removeprefix("self.") for each in texts]
        if all(map(str.isidentifier, simple_names)):
            return given
        return None if no_else else self._bound_to_a_pair(given)

    def _bound_to_a_pair(self, given: Initialize) -> Initialize | None:
        """Return `given` with the two targets of `model, optimizer = amp.initialize(...)`.

        Return None if the result is not assigned to a pair.
        """
        value = given.statement.targets[0] if isinstance(given.statement, ast.Assign) else None
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(_PAIR):
            return None
        code = self.about.program.source.code
        models, optimizers = value.elts
        return replace(given, models_text=code(models), optimizers_text=code(optimizers))

    def _rest(self, given: Initialize) -> str | None:
        """Return the rest of the statement: an assignment to other names, a return, or None."""
        values = [given.models_text, given.optimizers_text]
        if isinstance(given.statement, ast.Return):
            return f"return {', '.join(values)}"
        if not isinstance(given.statement, ast.Assign):
            return None
        bound = self.about.program.source.code(given.statement.targets[0])
        if _bare(bound) == _bare(", ".join(values)):
            return None
        return f"{bound} = {', '.join(values)}"


def _bare(text: str) -> str:
    return text.translate(str.maketrans("", "", "()[] \n"))
