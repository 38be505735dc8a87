"""Finds the statements that read or change gradients between a backward and its step.

With Apex, the gradients were unscaled there. A GradScaler unscales them on request, and an engine
in its step. So migrate must know each clip, its step, and the tests around the clip.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from halfstep.migrate.program.branches import CLIPS
from halfstep.migrate.program.names import argument, calls, dotted, last_name, targets, used_names
from halfstep.migrate.program.source import Function, inner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.migrate.analysis.steps import Move
    from halfstep.migrate.program.branches import Branches
    from halfstep.migrate.program.program import Program


LOOPS_NAME = "this clip runs in each iteration of a loop, but the step is outside of this loop"
NOT_EVERY_BRANCH = (
    "this clip would move to the step, and another branch of the program would lose the clip"
)
_PARAMETERS = {"parameters", "named_parameters", "modules", "named_modules", "children"}
_LEAVES_GRADIENTS = re.compile(
    r"eval|valid|test|save|checkpoint|log|writer|print|summary|ema|average|sched|predict|plot"
    r"|wandb|state_dict|count|metric|accuracy|memory|profil|time",
    re.IGNORECASE,
)
"""Names of functions of other files that only measure, save or copy a model."""


@dataclass(eq=False)
class Touch:
    """A statement that reads or changes gradients between a backward and a step.

    Attributes:
        statement: The statement.
        call: The call that clips or computes a norm; None for any other statement.
        setting: "clip_norm" or "clip_value" for a clip, "norm" for a call that only computes a
            norm, else "".
        limit: The source of the limit of a clip.
        whose: The source of the optimizer or model that has the gradients; "" if not known.
        of_model: Whether `whose` is a model.
        tests: The sources of the tests around the statement that are not around its step.
        step: The step that uses the gradients, or None.
        head: The statement, or the one around it, in the suite that also contains the step or a
            statement around the step.
        moved: Whether the rewritten clip must move to the step: the step is under tests that the
            statement is not under, or after a loop over micro-batches that contains the statement.
        scaled: Whether the statement is inside `scale_loss`, where gradients are scaled.
        given: The source of a call that passes a model to a function of another file, or "".
        bound_to_place: Why the clip cannot move to the step, or "".
    """

    statement: ast.stmt
    call: ast.Call | None = None
    setting: str = ""
    limit: str = ""
    whose: str = ""
    of_model: bool = False
    tests: tuple[str, ...] = ()
    step: Move | None = None
    head: ast.stmt | None = None
    moved: bool = False
    scaled: bool = False
    given: str = ""
    bound_to_place: str = ""

    @property
    def value_used(self) -> bool:
        """Whether the program uses the norm that the call returns."""
        return not (isinstance(self.statement, ast.Expr) and self.statement.value is self.call)


@dataclass
class Windows:
    """The statements between backwards and steps.

    Args:
        program: The parsed program.
        branches: The branches that exist only for amp.
        steps: The steps of optimizers that amp handles.

    Attributes:
        touches: The statements that read or change gradients.
    """

    program: Program
    branches: Branches
    steps: list[Move]
    touches: list[Touch] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the statements that touch gradients."""
        self._reaching = self._functions_with_gradients()
        nodes = inner(self.program.source.tree)
        self._own = {each.name for each in nodes if isinstance(each, Function)}
        functions = [
            *self.program.training,
            *(self.program.source.function(each.statement) for each in self.steps),
        ]
        for function in dict.fromkeys(functions):
            body = self.program.source.tree if function is None else function
            for node in inner(body, functions=False) if function is None else inner(body):
                if isinstance(node, ast.stmt) and node not in self.branches.dead:
                    self._look_at(node, function)
        self.touches = list({each.statement: each for each in self.touches}.values())

    def way(self, node: ast.AST) -> list[ast.stmt]:
        """Return the statements around a node in its function, outermost first.

        The node itself, if it is a statement, is the last. `if`s that exist only for amp are left
        out.
        """
        source = self.program.source
        way = source.way_in(node, source.function(node))
        return [each for each in way if each is node or each not in self.branches.amp]

    def suite(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the suite around a statement, ignoring `if`s that exist only for amp."""
        parent = self.program.source.parent[statement]
        while isinstance(parent, ast.If) and parent in self.branches.amp:
            statement = parent
            parent = self.program.source.parent[parent]
        return self.program.source.suite(statement)

    def apart(self, first: ast.stmt, second: ast.stmt) -> tuple[ast.stmt, ast.stmt] | None:
        """Return the two statements of one suite that contain (or are) two given statements.

        Return None if the given statements are in different branches, or one contains the other.
        """
        for one, two in zip(self.way(first), self.way(second), strict=False):
            if one is not two:
                return (one, two) if self.suite(one) is self.suite(two) else None
        return None

    def _look_at(self, statement: ast.stmt, function: Function | None) -> None:
        """Record a statement if it touches gradients; of a compound one, only its test counts."""
        if isinstance(statement, Function | ast.ClassDef) or hasattr(statement, "body"):
            heads = [getattr(statement, name, None) for name in ("test", "iter")]
            if not any(isinstance(each, ast.AST) and self._touches(each) for each in heads):
                return
            given = None
        else:
            given = self._gives_away(statement, function)
            if given is None and not self._touches(statement):
                return
        touch = self._read(statement)
        if given is not None and touch.call is None:
            touch.given = self.program.source.code(given)
        loss = self._loss_around(statement)
        touch.scaled = loss is not None
        touch.step = self._step_of(statement, function)
        if touch.step is not None:
            pair = self.apart(statement, touch.step.statement)
            assert pair is not None
            touch.head = pair[0]
            source = self.program.source
            turns = source.loop(statement) is not source.loop(touch.step.statement)
            again = turns and bool(self.program.losses_in(pair[0]))
            touch.moved = pair[1] is not touch.step.statement or again
            touch.tests = tuple(self._tests(pair[0], statement))
            if touch.moved:
                touch.bound_to_place = self._bound_to_place(
                    statement, touch.step.statement, pair[1]
                )
        self.touches.append(touch)

    def _bound_to_place(self, statement: ast.stmt, step: ast.stmt, outer: ast.stmt) -> str:
        """Return why a clip cannot move to the step, or "".

        The clip uses the variable of a loop without the step, or a later branch has no step.
        """
        source = self.program.source
        around = set(source.above(step))
        names = used_names(statement)
        for each in source.above(statement):
            if isinstance(each, ast.For) and each not in around and names & used_names(each.target):
                return LOOPS_NAME
        for each in (outer, *inner(outer)):
            if isinstance(each, ast.If) and each in around and each.orelse:
                sides = [
                    any(source.statement(m.call) in inner(s) for m in self.steps for s in side)
                    for side in (each.body, each.orelse)
                ]
                if not all(sides):
                    return NOT_EVERY_BRANCH
        return ""

    def _gives_away(self, statement: ast.stmt, function: Function | None) -> ast.Call | None:
        """Return a call after a backward that passes a model to a function of another file.

        Between a backward and its step, such a function may read or change gradients.
        """
        models = self.program.models
        for call in calls(statement):
            name = last_name(call.func)
            given = [*call.args, *(each.value for each in call.keywords)]
            whole = [dotted(each.func) if isinstance(each, ast.Call) else None for each in given]
            owners = [(path or "").rpartition(".") for path in whole]
            passed = any(
                any(path == model or path.startswith(f"{model}.") for model in models)
                for path in filter(None, map(dotted, given))
            ) or any(owner in models and last in _PARAMETERS for owner, _, last in owners)
            if (
                passed
                and not self._is_harmless(call, name)
                and self._is_pending(statement, function)
            ):
                return call
        return None

    def _is_harmless(self, call: ast.Call, name: str) -> bool:
        """Tell whether a call certainly does not touch gradients, or is handled elsewhere."""
        path = dotted(call.func) or name
        known = name in self._own or name in dir(builtins) or path in self.program.models
        return known or name in CLIPS or bool(_LEAVES_GRADIENTS.search(path))

    def _is_pending(self, statement: ast.stmt, function: Function | None) -> bool:
        """Tell whether a statement runs after a backward and before its step."""
        source, line = self.program.source, statement.lineno
        around = [
            each.statement
            for each in self.program.losses
            if each.statement not in self.branches.dead
            and source.function(each.statement) is function
        ]
        losses = [
            each.lineno
            for each in around
            if each.lineno < line and self.apart(each, statement) is not None
        ]
        stepped = [
            each.statement.lineno
            for each in self.steps
            if source.function(each.statement) is function and each.statement.lineno < line
        ]
        if not losses or max(stepped, default=0) > max(losses):
            return False
        step = self._step_of(statement, function)
        if step is None:
            return False
        more = any(line < each.lineno < step.statement.lineno for each in around)
        return not (more and isinstance(statement, ast.Assign | ast.AugAssign))

    def _loss_around(self, statement: ast.stmt) -> ast.AST | None:
        above = self.program.source.above(statement)
        return next((each for each in above if self.program.loss_of(each) is not None), None)

    def _step_of(self, statement: ast.stmt, function: Function | None) -> Move | None:
        """Return the next step in the same function that is not in another branch, or None."""
        for step in self.steps:
            if (
                self.program.source.function(step.statement) is function
                and step.statement.lineno > statement.lineno
                and self.apart(statement, step.statement) is not None
            ):
                return step
        return None

    def _tests(self, head: ast.stmt, statement: ast.stmt) -> Iterator[str]:
        way = self.way(statement)
        for outer, each in pairwise(way):
            if isinstance(outer, ast.If) and outer.lineno >= head.lineno:
                test = self.program.source.code(outer.test)
                body = any(each is one or one in self._around(each) for one in outer.body)
                yield test if body else f"not ({test})"
        if statement in self.branches.only_with_amp:
            yield self.branches.only_with_amp[statement]

    def _around(self, statement: ast.stmt) -> list[ast.AST]:
        return list(self.program.source.above(statement))

    def _touches(self, node: ast.AST) -> bool:
        """Tell whether a node reads or changes the gradients of parameters."""
        for each in inner(node):
            if isinstance(each, ast.Call):
                name = last_name(each.func)
                if name in self._reaching or self.program.master_params(each):
                    return True
                if re.search(r"clip_grad|grad_norm|grads?_clip|gradients?$", name):
                    return bool(each.args)
            elif isinstance(each, ast.Attribute) and self._is_gradient(each):
                return True
        return False

    def _is_gradient(self, node: ast.Attribute) -> bool:
        """Tell whether an attribute is a parameter's gradient, and is not only set to None."""
        parent = self.program.source.parent[node]
        called = isinstance(parent, ast.Call) and parent.func is node
        named = node.attr == "grad" and not called
        return named and self._is_of_parameters(node) and not self._is_dropped(node)

    def _is_of_parameters(self, node: ast.Attribute) -> bool:
        """Tell whether `x.grad` is a parameter's gradient, not that of a tensor made here."""
        owner = dotted(node.value)
        if owner is None or "." in owner:
            return True
        above = self.program.source.above(node)
        loops = [each for each in above if isinstance(each, ast.For | ast.comprehension)]
        if any(owner in used_names(each.target) for each in loops):
            return True
        function = self.program.source.scope(node)
        made = {dotted(target) for target in targets(function)}
        return owner not in made

    def _is_dropped(self, node: ast.Attribute) -> bool:
        """Tell whether `x.grad` is only set to None or compared, as in `x.grad is None`."""
        parent = self.program.source.parent[node]
        none = isinstance(parent, ast.Assign) and isinstance(parent.value, ast.Constant)
        compared = isinstance(parent, ast.Compare)
        return (none and node is not getattr(parent, "value", None)) or compared

    def _functions_with_gradients(self) -> set[str]:
        """Return the names of the program's functions that read or change gradients."""
        return {
            node.name
            for node in inner(self.program.source.tree)
            if isinstance(node, ast.FunctionDef)
            and node.name != "step"
            and node not in self.program.training
            and any(self._reaches(each) for each in inner(node, functions=False))
        }

    def _reaches(self, node: ast.AST) -> bool:
        """Tell whether a node clips, reads master parameters or reads `.grad`."""
        if isinstance(node, ast.Call):
            return last_name(node.func) in CLIPS or bool(self.program.master_params(node))
        return isinstance(node, ast.Attribute) and node.attr == "grad"

    def _read(self, statement: ast.stmt) -> Touch:
        """Return the `Touch` of a statement, with its call if that clips or computes a norm."""
        touch = Touch(statement)
        if hasattr(statement, "body"):
            return touch
        for call in calls(statement):
            name = last_name(call.func)
            if not call.args:
                continue
            whose, of_model = self._whose(call.args[0])
            limit = argument(call, "max_norm", 1) or argument(call, "clip_value", 1)
            kind = argument(call, "norm_type", 2)
            usual = kind is None or self.program.source.code(kind) in {"2", "2.0"}
            if whose and name in CLIPS and limit is not None and usual:
                touch.setting, touch.limit = CLIPS[name], self.program.source.code(limit)
            elif whose and "norm" in name and len(call.args) == 1 and not call.keywords:
                touch.setting = "norm"
            else:
                continue
            touch.call, touch.whose, touch.of_model = call, whose, of_model
            break
        return touch

    def _whose(self, parameters: ast.expr) -> tuple[str, bool]:
        """Return the source of the optimizer or model that has all the given parameters.

        Returns:
            The source, or "" if it is not known, and whether it is a model.
        """
        if isinstance(parameters, ast.Call):
            masters = self.program.master_params(parameters)
            if masters and masters[0] is parameters:
                return self.program.source.code(parameters.args[0]), False
            name = last_name(parameters.func)
            if name in {"filter", "list"} and parameters.args:
                return self._whose(parameters.args[-1])
            if name == "parameters" and isinstance(parameters.func, ast.Attribute):
                owner = self.program.source.code(parameters.func.value).removesuffix(".module")
                return (owner if self._is_model(owner, parameters) else "", True)
        return "", False

    def _is_model(self, owner: str, node: ast.AST) -> bool:
        """Tell whether a name is a model that amp handles.

        If amp handles one model, an object that the same function calls is assumed to be it.
        """
        if owner in self.program.models:
            return True
        known = {tuple(each.models) for each in self.program.initializes if each.optimizers}
        function = self.program.source.function(node)
        return (
            len(known) == 1
            and len(next(iter(known))) == 1
            and function is not None
            and any(self.program.source.code(call.func) == owner for call in calls(function))
        )
