"""Rewrites the uses of amp in a program for a target, if migrate understands all of them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halfstep.migrate.analysis.understanding import PASSED_ON, PRIVATE
from halfstep.migrate.analysis.uninitialized import NO_OBJECT, without_initialize
from halfstep.migrate.program.names import calls, last_name
from halfstep.migrate.program.program import INITIALIZE, MASTER_PARAMS, SCALE_LOSS
from halfstep.migrate.program.render import Edits, Region
from halfstep.migrate.program.source import inner
from halfstep.migrate.rewriting.formats import note_formats
from halfstep.migrate.rewriting.initializations import Initializations
from halfstep.migrate.rewriting.losses import Losses, loss_name
from halfstep.migrate.rewriting.on_engine import on_engine
from halfstep.migrate.rewriting.on_torch import on_torch
from halfstep.migrate.rewriting.placement import place
from halfstep.migrate.rewriting.targets import O3, EngineTarget, TorchTarget

if TYPE_CHECKING:
    from halfstep.migrate.analysis.regions import Forward
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.rewriting.expressions import Expressions

NO_FORWARD = (
    "the forward pass of this loss was not found, so it would run in fp32, without autocast; move "
    "it into this function, before amp.scale_loss"
)
NOT_AMPS = (
    "this optimizer was not passed to amp.initialize, so its gradients are still multiplied by the "
    "loss scale here, as with Apex"
)
HALF = "the program calls .half() itself, but torch.amp needs fp32 parameters"
NO_DUMMY = (
    "a step before the first backward is removed here; it only prepared Apex's optimizer, and {} "
    "needs no preparation"
)
STEP_FIRST = "the step comes before the first backward, so there are no gradients yet"
NOT_ALWAYS = "the backward is under a condition and its step is not, so there may be no gradients"


@dataclass
class Rewriter:
    """Collects the changes to a program.

    Args:
        about: The analysis of the program; reasons not to rewrite are added to it.
        target: Writes the code that replaces amp.
        expressions: Rewrites expressions.
        edits: The changes to the program, which are added here.
    """

    about: Understanding
    target: EngineTarget | TorchTarget
    expressions: Expressions
    edits: Edits

    def write(self) -> None:
        """Rewrite the uses of amp, or add reasons not to."""
        self._place()
        self._refuse_levels()
        for node, side in self.about.branches.amp.items():
            self.edits.replaced[node] = [side]
        self._forwards()
        self._calls_of_forward()
        note_formats(self.about, self.target, self.edits)
        losses = Losses(self.about, self.target, self.edits)
        hoisted = [each.hoisted for each in self.about.forwards.found]
        for loss in self.about.program.losses:
            if self.about.live(loss):
                losses.write(loss, hoisted=loss in hoisted)
        if isinstance(self.target, EngineTarget):
            on_engine(self.about, self.target, self.edits)
        else:
            on_torch(self.about, self.target, self.edits)
        self._without_backward()
        initializations = Initializations(self.about, self.target, self.edits)
        for given in self.about.program.initializes:
            initializations.write(given)
        self.edits.replaced |= {each: [] for each in self.about.program.unused}
        for statement in self.about.outside:
            self.edits.notes[statement].append(NOT_AMPS)
        for each in reversed(list(inner(self.about.program.source.tree))):
            if isinstance(each, ast.If) and self._is_empty(each):
                self.edits.replaced[each] = []
        self._expressions()

    def _place(self) -> None:
        about, program = self.about, self.about.program
        uses: list[ast.AST] = [loss.statement for loss in program.losses]
        uses += [move.statement for move in (*about.steps, *about.zero_grads)]
        uses += [each.first for each in about.forwards.found if each.first is not None]
        for node in inner(program.source.tree):
            name = program.imports.qualified(node)
            if name and name.startswith("apex.amp") and not isinstance(node, ast.Import):
                uses.append(node)
        name = "engine" if isinstance(self.target, EngineTarget) else "scaler"
        where = place(program, name, uses)
        self.target.object, self.target.shared = where.object, where.shared
        for function in where.global_in:
            body = function.body
            documented = ast.get_docstring(function) is not None and len(body) > 1
            self.edits.before[body[1 if documented else 0]].insert(0, f"global {where.object}")

    def _refuse_levels(self) -> None:
        """Refuse levels that `torch.amp` cannot express, and find whether autocast is always on."""
        if isinstance(self.target, EngineTarget):
            return
        source = self.about.program.source
        self.target.always_on = all(
            self.about.recipes[each.call].level == "O1"
            and self.about.recipes[each.call].enabled is None
            and not any(isinstance(around, ast.If) for around in source.above(each.statement))
            for each in self.about.trained
        )
        for given in self.about.trained:
            level = self.about.recipes[given.call].level
            if level == "O3":
                self.about.leave(given.call, O3)
            elif level == "O2":
                for node in inner(self.about.program.source.tree):
                    if isinstance(node, ast.Attribute) and node.attr == "half":
                        self.about.leave(node, HALF)

    def _forwards(self) -> None:
        about = self.about
        levels = {about.recipes[each.call].level for each in about.trained}
        engine = isinstance(self.target, EngineTarget)
        if levels - ({"O0", "O2", "O3"} if engine else {"O0"}):
            for loss in about.forwards.missing:
                if about.live(loss):
                    about.leave(loss.call, NO_FORWARD)
        for forward in about.forwards.found:
            self._forward(forward)
        for statement, root in without_initialize(about.forwards):
            reason = NO_OBJECT.format(root, self.target.called)
            self.edits.notes[statement].append(reason)

    def _forward(self, forward: Forward) -> None:
        head = self.target.autocast()
        tail: tuple[str, ...] = ()
        loss = forward.hoisted
        if loss is not None:
            name = loss_name(self.about.program, loss)
            tail = (f"{name} = {self.about.program.source.code(loss.loss)}",)
        if forward.first is not None and forward.last is not None:
            beside = loss is not None and self._next_to(forward.last, loss.statement)
            self.edits.regions[forward.first] = Region(head, forward.last, tail if beside else ())
            if beside:
                return
        if loss is not None:
            self.edits.before[loss.statement].append(f"{head}\n    {tail[0]}")

    def _calls_of_forward(self) -> None:
        """Replace `model.forward(x)` by `model(x)`: the engine casts the inputs of calls only."""
        about, code = self.about, self.about.program.source.code
        levels = {about.recipes[each.call].level for each in about.trained}
        if isinstance(self.target, TorchTarget) or levels <= {"O0", "O1"}:
            return
        for call in calls(about.program.source.tree):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "forward":
                model = code(call.func.value)
                if model in about.program.models:
                    self.edits.expressions[call.func] = model

    def _is_empty(self, node: ast.If) -> bool:
        """Tell whether both sides of an `if` have become empty and its test has no side effect."""
        edits, about = self.edits, self.about
        if node in edits.replaced or node in about.branches.dead or _acts(node.test):
            return False
        return self._gone([*node.body, *node.orelse]) and not any(
            part.get(node) for part in (edits.before, edits.after, edits.notes)
        )

    def _gone(self, suite: list[ast.stmt]) -> bool:
        """Tell whether nothing is left of a suite."""
        edits = self.edits
        return all(edits.replaced.get(each) == [] for each in suite) and not any(
            part.get(each) for each in suite for part in (edits.before, edits.after, edits.notes)
        )

    def _next_to(self, first: ast.stmt, second: ast.stmt) -> bool:
        suite = self.about.program.source.suite(first)
        return second in suite and suite.index(second) == suite.index(first) + 1

    def _without_backward(self) -> None:
        """Remove or refuse steps without a backward before them: there are no gradients yet.

        Some programs step once before training, so that Apex allocates its master weights.
        """
        source, live = self.about.program.source, self.about.live
        for move in self.about.steps:
            step = move.statement
            losses = [
                each.statement
                for each in self.about.program.losses
                if live(each) and source.function(each.statement) is source.function(step)
            ]
            before = [each for each in losses if each.lineno < step.lineno]
            loop = source.loop(step)
            if losses and not before and loop is None:
                self.edits.replaced[step] = []
                self.edits.after.pop(step, None)
                self.edits.notes[step].append(NO_DUMMY.format(self.target.called))
            elif losses and not before:
                self.about.leave(step, STEP_FIRST)
            elif before and all(self._is_conditional(each, step) for each in before):
                self.about.leave(step, NOT_ALWAYS)

    def _is_conditional(self, loss: ast.stmt, step: ast.stmt) -> bool:
        """Tell whether a backward is under a test, and its step is not under the same test."""
        pair = self.about.windows.apart(loss, step)
        if pair is None:
            return True
        head = pair[0]
        if not isinstance(head, ast.If):
            return False
        if not head.orelse:
            return True
        holds = [
            any(self.about.program.losses_in(each) for each in side)
            for side in (head.body, head.orelse)
        ]
        return not all(holds)

    def _expressions(self) -> None:
        """Rewrite expressions; refuse the program if a use of amp has no counterpart."""
        about = self.about
        for node in inner(about.program.source.tree):
            if (
                isinstance(node, ast.Assign)
                and about.program.imports.qualified(node.value) == "apex.amp"
                and about.program.follows_amp(node.value)
            ):
                self.edits.replaced[node] = []
        written = {
            statement
            for statement, pieces in self.edits.replaced.items()
            if not any(isinstance(each, list) for each in pieces)
        }
        scaled = [loss.statement for loss in about.program.losses]
        heads = {each.items[0] for each in scaled if isinstance(each, ast.With)}
        clips = set(self.edits.expressions)
        recipes = about.recipes[about.trained[0].call]
        self.expressions.losses = recipes.losses
        self.expressions.read({*about.branches.dead, *written, *heads, *clips})
        self.edits.expressions |= self.expressions.changed
        known = {INITIALIZE, SCALE_LOSS, MASTER_PARAMS} if about.reasons else set()
        for node in self.expressions.amp_left:
            name = about.program.imports.qualified(node)
            assert name is not None
            if name in known:
                continue
            if name in {"apex.amp", "apex"}:
                about.leave(node, PASSED_ON)
            else:
                about.leave(node, PRIVATE.format(name, self.target.called))


def _acts(test: ast.expr) -> bool:
    """Tell whether a test may do more than compare values."""
    does = ast.NamedExpr | ast.Await | ast.Yield
    return any(
        isinstance(each, does)
        or (isinstance(each, ast.Call) and last_name(each.func) not in _ONLY_ASK)
        for each in inner(test)
    )


_ONLY_ASK = {
    *("hasattr", "getattr", "isinstance", "len", "bool", "int", "float", "is_available", "get"),
    *("lower", "upper", "startswith", "endswith", "all", "any", "get_rank", "is_main_process"),
}
