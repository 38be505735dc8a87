"""Analyses a whole program before any line changes, and collects the reasons not to rewrite it.

migrate rewrites either all uses of amp in a program or none: with only some of them rewritten, the
program would train wrongly without an error. Each reason is recorded at the line that it is about.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.migrate.analysis.recipes import RecipeArgument, recipe_argument
from halfstep.migrate.analysis.regions import Forwards
from halfstep.migrate.analysis.steps import Move, Owners
from halfstep.migrate.analysis.windows import Windows
from halfstep.migrate.program.branches import OTHERWISE, Branches, read_branches
from halfstep.migrate.program.names import argument, bound, calls, dotted, last_name, parameters
from halfstep.migrate.program.program import SCALE_LOSS
from halfstep.migrate.program.source import Function, inner, suites
from halfstep.migrate.program.state import asks_for_state

if TYPE_CHECKING:
    from halfstep.migrate.program.call_graph import CallGraph
    from halfstep.migrate.program.program import Initialize, Program, ScaledLoss

LEFT = "; the calls of amp in this file are unchanged; `python -m halfstep.apex` runs them"
NO_INITIALIZE = (
    "no amp.initialize in this file; build {} in the file with amp.initialize, and pass it to this "
    "function"
)
NO_LOSS = (
    "no amp.scale_loss in this file; build {} here, and pass it to the code with amp.scale_loss"
)
SEVERAL = (
    "amp.initialize is called several times, for other models or optimizers, but only one {} "
    "replaces amp; call it once, amp.initialize([model1, model2], [optimizer1, optimizer2], ...), "
    "and migrate again"
)
INFERENCE = (
    "amp.initialize without an optimizer; if the program only does inference, put the forward "
    "pass under torch.autocast"
)
MAYBE_NONE = (
    "`{}` may be None here, and then amp.initialize returns only the model; call it only if "
    "there is an optimizer"
)
UNPACKED = "the settings of amp are in {}, whose value migrate does not know; write them out"
NATIVE = "the program uses torch.amp as well; run it with torch.amp, and delete the code for Apex"
HOROVOD = "Horovod's optimizer waits for the gradients inside amp.scale_loss"
NO_STEP = "this file has no statement `optimizer.step()` for {}"
UNKNOWN_STEP = "migrate does not know whether `{}` steps an optimizer that amp handles"
CLOSURE = "`{}` has arguments, but amp supported only steps without arguments"
NATIVE_BACKWARD = (
    "this backward does not use amp.scale_loss, but the next step is of an optimizer that amp "
    "handles"
)
PRIVATE = "{} is internal state of amp; {} has no counterpart"
PASSED_ON = "amp itself is an argument here, and migrate does not know how it is used"
REBOUND = "{} is a parameter here, and migrate does not know whether it is Apex's amp"
_HOROVODS = {"DistributedOptimizer", "synchronize", "skip_synchronize"}
_NATIVE_NAMES = {"GradScaler", "NativeScaler", "autocast"}
_NATIVE_MODULES = ("torch.cuda.amp", "torch.amp", "torch.autocast")
_STATE = {
    *("_amp_stash", "_lazy_init_maybe_master_weights", "_amp_lazy_init", "_post_amp_backward"),
    *("_prepare_amp_backward", "_master_params_to_model_params", "_amp_wrapped"),
}


@dataclass
class Understanding:
    """The analysis of a program, and the reasons why its uses of amp are not rewritten.

    Args:
        program: The parsed program.
        called: "the Engine" or "the GradScaler", for messages.

    Attributes:
        recipes: Maps each call of `amp.initialize` to its recipe.
        steps: The steps of optimizers that amp handles.
        zero_grads: The calls of `zero_grad` on models and optimizers that amp handles.
        outside: The steps of optimizers that amp does not handle.
        reasons: Statements, each with a reason not to rewrite; empty if migrate understands all.
    """

    program: Program
    called: str
    branches: Branches = field(init=False)
    owners: Owners = field(init=False)
    graph: CallGraph = field(init=False)
    windows: Windows = field(init=False)
    forwards: Forwards = field(init=False)
    recipes: dict[ast.Call, RecipeArgument] = field(init=False)
    steps: list[Move] = field(default_factory=list)
    zero_grads: list[Move] = field(default_factory=list)
    outside: list[ast.stmt] = field(default_factory=list)
    reasons: list[tuple[ast.stmt, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Analyse the program."""
        program = self.program
        self.branches = read_branches(program)
        self.owners = Owners(program, self.branches)
        self.graph = program.graph
        self._initializes()
        self._other_uses()
        for node in self.branches.different:
            self.leave(node, OTHERWISE)
        if not self.reasons:
            self._moves()
            self._backwards()
        self.windows = Windows(program, self.branches, self.steps)
        ends = [*(each.statement for each in program.losses), *(s.statement for s in self.steps)]
        self.forwards = Forwards(program, self.windows, ends, self.graph)
        self.recipes = {
            each.call: recipe_argument(program.source, each.call) for each in program.initializes
        }

    def leave(self, node: ast.AST, reason: str) -> None:
        """Add a reason not to rewrite the program, at the statement of a node."""
        self.reasons.append((self.program.source.statement(node), reason + LEFT))

    @property
    def trained(self) -> list[Initialize]:
        """The calls of `amp.initialize` with an optimizer."""
        return [each for each in self.program.initializes if each.optimizers]

    @property
    def may_have_masters(self) -> bool:
        """Whether the optimizers may step with fp32 copies of fp16 parameters."""
        recipes = [self.recipes[each.call] for each in self.trained]
        return any(
            each.level in {"O2", None} and each.settings.get("master_weights", True)
            for each in recipes
        )

    def live(self, loss: ScaledLoss) -> bool:
        """Tell whether a scaled loss stays: it is not in a branch that is removed."""
        return loss.statement not in self.branches.dead

    def _initializes(self) -> None:
        program, trained = self.program, self.trained
        for odd in program.odd_losses or self._loss_names():
            self.leave(odd, "amp.scale_loss is not in a `with amp.scale_loss(...) as name:`")
        if not program.initializes:
            kept = self._kept()
            for node in kept or self._amp_statements()[:1]:
                self.leave(node, PASSED_ON if kept else NO_INITIALIZE.format(self.called))
            return
        for each in program.initializes:
            self._initialize(each)
        kinds = {(*each.models, *each.optimizers) for each in trained}
        if len(kinds) > 1 or self._one_after_another(trained):
            for each in trained:
                self.leave(each.call, SEVERAL.format(self.called))

    def _loss_names(self) -> list[ast.expr]:
        """Return the uses of `amp.scale_loss` in a program without a scaled loss."""
        program = self.program
        uses = [] if program.losses else program.engine_uses(program.source.tree)
        return [each for each in uses if program.imports.qualified(each) == SCALE_LOSS]

    def _initialize(self, given: Initialize) -> None:
        """Add the reasons not to rewrite that one `amp.initialize` gives."""
        call, statement = given.call, given.statement
        if not given.optimizers and not self.trained:
            self.leave(call, INFERENCE)
        stars = [f"**{self._code(each.value)}" for each in call.keywords if each.arg is None]
        stars += [self._code(each) for each in call.args if isinstance(each, ast.Starred)]
        for each in stars:
            self.leave(call, UNPACKED.format(each))
        for each in given.optimizers:
            if self._may_be_none(each, statement, given.function):
                self.leave(call, MAYBE_NONE.format(each))
        kinds = ast.Assign | ast.Expr | ast.Return
        if not isinstance(statement, kinds) or statement.value is not call:
            self.leave(call, "amp.initialize stands in a larger expression")
        elif not self.program.losses and not self._loss_names() and given.optimizers:
            kept = self._kept()
            for node in kept or [call]:
                self.leave(node, PASSED_ON if kept else NO_LOSS.format(self.called))

    def _may_be_none(self, name: str, at: ast.stmt, function: Function | None) -> bool:
        """Tell whether the last statement before `at` that always binds `name` assigns None."""
        source = self.program.source
        for place in reversed(source.way_in(at, function)):
            suite = source.suite(place)
            for before in reversed(suite[: suite.index(place)]):
                if isinstance(before, ast.Assign) and name in bound(before):
                    return _gives_none(before, name)
                if _binds_on_both_sides(before, name):
                    return False
        return False

    def _code(self, node: ast.AST) -> str:
        return self.program.source.code(node)

    def _one_after_another(self, trained: list[Initialize]) -> bool:
        source = self.program.source
        for each in trained:
            for other in trained:
                if each is other or each.function is not other.function:
                    continue
                one = source.way_in(each.statement, each.function)
                two = source.way_in(other.statement, other.function)
                split = next((p for p in zip(one, two, strict=False) if p[0] is not p[1]), None)
                if split and source.suite(split[0]) is source.suite(split[1]):
                    return True
        return False

    def _kept(self) -> list[ast.AST]:
        """Return the nodes that store amp itself or pass it on, as in `args.amp = amp`."""
        program = self.program
        given: list[ast.AST] = []
        for node in inner(program.source.tree):
            if isinstance(node, ast.Assign | ast.keyword):
                given.append(node.value)
            elif isinstance(node, ast.Call):
                given += node.args
        return [
            each
            for each in given
            if program.imports.qualified(each) == "apex.amp" and not program.follows_amp(each)
        ]

    def _amp_statements(self) -> list[ast.stmt]:
        """Return the statements that use amp, for a program that does not initialize it."""
        program = self.program
        uses = program.engine_uses(program.source.tree)
        scaled = [each for each in uses if program.imports.qualified(each) == SCALE_LOSS]
        return [program.source.statement(each) for each in scaled or uses]

    def _other_uses(self) -> None:
        """Refuse Horovod, `torch.amp`, amp's private state, and parameters that may be amp."""
        program = self.program
        horovod = any(each.partition(".")[0] == "horovod" for each in program.imports.modules)
        if horovod and not program.names.isdisjoint(_HOROVODS):
            self._at_initialize(HOROVOD)
        if self._has_native():
            self._at_initialize(NATIVE)
        for node in inner(program.source.tree):
            if isinstance(node, ast.Attribute) and node.attr in _STATE:
                self.leave(node, PRIVATE.format(f"`.{node.attr}`", self.called))
        for function in program.source.parent:
            if isinstance(function, Function):
                for name in sorted(parameters(function)):
                    amp = program.imports.of(function).bound.get(name) == "apex.amp"
                    alias = (function, name) in program.amp_keys
                    if amp and not alias and not asks_for_state(program.source, function, name):
                        self.leave(function, REBOUND.format(f"`{name}`"))

    def _at_initialize(self, reason: str) -> None:
        for each in self.program.initializes:
            self.leave(each.call, reason)
        if not self.program.initializes:
            for node in self._amp_statements():
                self.leave(node, reason)

    def _has_native(self) -> bool:
        modules = self.program.imports.modules
        if any(each.startswith(_NATIVE_MODULES) for each in modules):
            return True
        return any(
            last_name(call.func) in _NATIVE_NAMES
            and (dotted(call.func) or "").startswith(("torch.", *_NATIVE_NAMES))
            for call in calls(self.program.source.tree)
        )

    def _moves(self) -> None:
        """Find the calls of `step` and `zero_grad` on optimizers that amp handles."""
        source = self.program.source
        for call in [*self.program.steps, *self.program.zero_grads]:
            statement = source.statement(call)
            assert isinstance(call.func, ast.Attribute)
            if statement in self.branches.dead or source.code(call.func.value) == "super()":
                continue
            whose = self.owners.whose(call)
            steps = call.func.attr == "step"
            if whose == "outside" and steps:
                self.outside.append(statement)
            if whose == "unknown" and (steps or source.function(call) in self.program.training):
                self.leave(call, UNKNOWN_STEP.format(source.code(call)))
            if whose != "amp":
                continue
            move = self.owners.move(call)
            if steps and (call.args or call.keywords):
                self.leave(call, CLOSURE.format(source.code(call)))
            elif move is None:
                self.leave(call, f"`{source.code(call)}` is not a statement of its own")
            else:
                (self.steps if steps else self.zero_grads).append(move)
        self.steps.sort(key=lambda move: move.statement.lineno)
        self.zero_grads.sort(key=lambda move: move.statement.lineno)
        if not self.steps and not self.reasons:
            for loss in self.program.losses:
                self.leave(loss.call, NO_STEP.format(" and ".join(loss.optimizers)))

    def _backwards(self) -> None:
        """Refuse backwards outside of `scale_loss` whose gradients a step of amp's may use."""
        source = self.program.source
        with_step = {source.function(move.statement) for move in self.steps}
        for call in self.program.backwards:
            assert isinstance(call.func, ast.Attribute)
            owner = call.func.value
            if source.statement(call) in self.branches.dead or dotted(owner) in _NO_LOSSES:
                continue
            inside = [self.program.loss_of(each) for each in source.above(call)]
            if any(each and each.name in source.code(owner) for each in inside):
                continue
            function = source.function(call)
            if dotted(owner) == "self" or self._is_method(call) or self._is_dropped(call):
                continue
            trains = function in with_step or function in self.program.training
            if trains or (function is not None and self._enters_an_update(function)):
                self.leave(call, NATIVE_BACKWARD)

    def _is_method(self, backward: ast.Call) -> bool:
        """Tell whether `x.backward(...)` calls a method of the program: `x` is no tensor."""
        assert isinstance(backward.func, ast.Attribute)
        owner = backward.func.value
        known = self.program.objects.class_of(owner) is not None
        known |= dotted(owner) in self.program.models
        return known and any(self.program.graph.methods(backward))

    def _is_dropped(self, backward: ast.Call) -> bool:
        """Tell whether the gradients of a backward are cleared before anything uses them."""
        source = self.program.source
        statement = source.statement(backward)
        suite = source.suite(statement)
        known = {*self.program.models, *self.program.optimizers}
        zeroed = {
            each
            for call in self.program.zero_grads
            if source.code(call.func).rpartition(".")[0] in known
            and isinstance(each := source.parent[call], ast.Expr)
        }
        for each in suite[suite.index(statement) + 1 :]:
            if each in zeroed:
                return True
            inside = [last_name(call.func) for call in calls(each)]
            if suites(each) or any(name not in _HARMLESS for name in inside):
                return False
        return False

    def _enters_an_update(self, function: Function) -> bool:
        """Tell whether a function is called before a scaled loss, without a `zero_grad` between."""
        source, graph = self.program.source, self.graph
        if any(source.function(call) is function for call in self.program.steps):
            return False
        for loss in filter(self.live, self.program.losses):
            home, end = source.function(loss.statement), loss.statement.lineno
            body = source.scope(loss.statement)
            zeroed = [
                move.statement.lineno
                for move in self.zero_grads
                if source.function(move.statement) is home and move.statement.lineno < end
            ]
            for call in calls(body):
                begin = call.lineno
                if (
                    source.function(call) is home
                    and max(zeroed, default=0) < begin < end
                    and source.statement(call) not in self.branches.dead
                    and source.loop(call) is source.loop(loss.statement)
                    and function in graph.reached(graph.called(call))
                ):
                    return True
        return False


def _binds_on_both_sides(statement: ast.stmt, name: str) -> bool:
    return (
        isinstance(statement, ast.If)
        and bool(statement.orelse)
        and all(
            any(name in bound(each) for part in side for each in inner(part))
            for side in (statement.body, statement.orelse)
        )
    )


def _gives_none(statement: ast.Assign, name: str) -> bool:
    """Tell whether an assignment, perhaps of several names, assigns None to `name`."""
    for target in statement.targets:
        pairs = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=False))
        for one, value in pairs:
            if dotted(one) == name and isinstance(value, ast.Constant) and value.value is None:
                return True
    return False


_HARMLESS = {*dir(builtins), "item", "info", "debug", "empty_cache", "synchronize", "collect"}
"""Functions that certainly use no gradients."""
_NO_LOSSES = {"ctx", "super()", "torch.autograd", "F", "Function"}


def constant(call: ast.Call, name: str, place: int | None = None) -> object:
    """Return the value of an argument: None if not given, `...` if it is not a constant."""
    given = argument(call, name, place)
    if given is None:
        return None
    return given.value if isinstance(given, ast.Constant) else ...
