"""Finds the statements that belong under autocast: from the call of a model to the loss.

Apex's O1 patched torch's functions in the whole program. In the rewritten program, the statements
that compute a loss are in a `with` block. The search goes back from the loss to the statements that
compute the values it needs. Evaluation is not changed, so it runs in fp32.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.migrate.analysis.initialized import follows_initialize, precedes_initialize
from halfstep.migrate.analysis.outputs import used_behind
from halfstep.migrate.program.names import argument, assigned, calls, dotted, last_name, paths
from halfstep.migrate.program.source import Function, inner, last_line, suites

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from halfstep.migrate.analysis.windows import Windows
    from halfstep.migrate.program.call_graph import CallGraph
    from halfstep.migrate.program.program import Program, ScaledLoss

_MOVES_DATA = {
    *("to", "cuda", "cpu", "float", "long", "int", "next", "size", "view", "permute", "tuple"),
    *("len", "zip", "enumerate", "isinstance", "unsqueeze", "squeeze", "Variable", "range", "list"),
    *("append", "format", "time", "item", "update", "items", "keys", "values", "get", "print"),
    *("detach", "clone", "requires_grad_", "contiguous", "reshape", "transpose", "str", "dict"),
    *("bool", "zero_", "train", "zero_grad", "step", "extend", "is_tensor", "from_numpy", "numel"),
    *("mean", "sum", "backward", "join", "to_device", "move_to_device", "type", "sorted", "set"),
    *("randn", "rand", "randint", "zeros", "ones", "tensor", "arange", "full", "empty", "randperm"),
    *("as_tensor", "LongTensor", "FloatTensor", "zeros_like", "ones_like", "randn_like", "iter"),
    *("rand_like", "empty_like", "normal_", "uniform_", "fill_", "as_numpy", "numpy", "copy"),
    *("stack", "cat", "concat", "insert", "add", "setdefault"),
}
"""Functions that neither run a model nor compute a loss from its output."""
_FILLING = {"append", "extend", "insert", "update", "add", "setdefault"}


@dataclass(eq=False)
class Forward:
    """A forward pass.

    Attributes:
        first: The first statement under autocast; None if only the argument of `scale_loss` is.
        last: The last statement under autocast; None if `first` is None.
        hoisted: The scaled loss if the argument of `scale_loss` runs the model or reduces its
            output, else None. The argument is then assigned to a name under autocast.
    """

    first: ast.stmt | None
    last: ast.stmt | None
    hoisted: ScaledLoss | None = None


@dataclass
class Forwards:
    """The forward passes of a program.

    Args:
        program: The parsed program.
        windows: The order of backwards and steps.
        ends: The statements that end a forward pass: backwards and steps.
        graph: The call graph.

    Attributes:
        found: The forward passes.
        missing: The losses without a forward pass.
    """

    program: Program
    windows: Windows
    ends: Sequence[ast.stmt]
    graph: CallGraph
    found: list[Forward] = field(default_factory=list)
    missing: list[ScaledLoss] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Find the forward pass of each loss, and other calls of models in training code."""
        self._ending = {
            each for end in self.ends for each in (end, *self.program.source.above(end))
        }
        for loss in self.program.losses:
            runs = self._runs(loss.loss)
            before = self._before(loss.statement, paths(loss.loss), found=runs)
            if runs or (before is not None and _reduces(loss.loss)):
                last = before.last if before is not None else None
                first = before.first if before is not None else None
                self.found.append(Forward(first, last, loss))
            elif before is not None:
                self.found.append(before)
            else:
                passed = list(self._passed_in(loss))
                self.found += passed
                if not passed:
                    self.missing.append(loss)
            self.found += self._in_callers(loss)
        self._merge()
        self._models_elsewhere()
        self._merge()
        covered = set(self.covered())
        self.found += [
            Forward(each, each)
            for each in used_behind(self.program, covered)
            if each not in self._ending and each not in self.windows.branches.dead
        ]

    def _before(self, end: ast.stmt, needed: set[str], *, found: bool = False) -> Forward | None:
        """Find the statements before `end` that run a model to compute the names in `needed`.

        `found` tells whether the expression of the loss runs a model itself.
        """
        place = end
        for statement in reversed(self.windows.way(end)):
            place = statement
            suite = self.flat(self.windows.suite(statement))
            at = suite.index(place)
            taken: list[int] = []
            names = set(needed)
            for back in range(at - 1, -1, -1):
                each = suite[back]
                if each in self._ending:
                    if any(self._runs(suite[one]) for one in taken):
                        break
                    taken = []
                    continue
                if isinstance(each, Function | ast.ClassDef):
                    continue
                made = (assigned(each) | _filled(each)) - self.program.models
                if made & names:
                    taken.append(back)
                    names |= paths(each)
            running = [back for back in taken if self._runs(suite[back])]
            if running and self._in_one_suite(suite[min(running)], suite[max(taken)]):
                used = [back for back in taken if assigned(suite[back]) & needed] or running
                last = max(running) if found else max(*used, *running)
                return Forward(suite[min(running)], suite[last])
            around = self.program.source.parent[place]
            if isinstance(around, ast.For) and paths(around.target) & needed:
                needed = needed | paths(around.iter)
            elif isinstance(around, ast.For | ast.While | ast.Module):
                break  # values from before a loop are not computed again in each step
        return None

    def _in_one_suite(self, first: ast.stmt, last: ast.stmt) -> bool:
        return last in self.program.source.suite(first)

    def flat(self, suite: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return a suite, with the amp side in place of each `if` that exists only for amp."""
        done: list[ast.stmt] = []
        for each in suite:
            amp = self.windows.branches.amp.get(each) if isinstance(each, ast.If) else None
            done += [each] if amp is None else self.flat(amp)
        return done

    def _runs(self, node: ast.AST) -> bool:
        """Tell whether a node calls a model, or a function that may compute with its output."""
        for call in calls(node):
            name = last_name(call.func)
            path = dotted(call.func) or ""
            if path in self.program.models:
                return True
            if name and name not in _MOVES_DATA and not path.startswith(("np.", "os.", "time.")):
                return True
            if not name and isinstance(call.func, ast.Subscript | ast.Call):
                return True
        return False

    def _passed_in(self, loss: ScaledLoss) -> Iterator[Forward]:
        """Yield the forward passes before calls that pass a loss to the function that scales it."""
        source = self.program.source
        function = source.function(loss.statement)
        given = dotted(loss.loss)
        if function is None or given is None:
            return
        parameters = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if given not in parameters:
            return
        place = parameters.index(given)
        class_ = source.class_(function)
        if class_ is not None and parameters[0] == "self":
            place -= 1
        names = {function.name}
        if function.name == "__call__" and class_ is not None:
            names = self._instances(class_.name)
        for call in calls(source.tree):
            if last_name(call.func) not in names:
                continue
            passed = argument(call, given, place)
            statement = source.statement(call)
            if passed is None or function in source.above(call) or isinstance(statement, Function):
                continue
            if self._runs(passed):
                continue  # the argument itself runs the model, so no statement before it does
            before = self._before(statement, paths(passed))
            if before is not None:
                yield before

    def _in_callers(self, loss: ScaledLoss) -> Iterator[Forward]:
        """Yield forward passes in callers that pass outputs to the function that scales a loss."""
        source = self.program.source
        function = source.function(loss.statement)
        if function is None:
            return
        needed = self._made_of(loss, function)
        for call in self.graph.calls_of(function):
            statement = source.statement(call)
            for name, given in self.graph.passed(call, function):
                if name not in needed or dotted(given) in self.program.models:
                    continue
                before = self._before(statement, paths(given))
                if before is not None and self._trains_model(before):
                    yield before

    def _made_of(self, loss: ScaledLoss, function: Function) -> set[str]:
        """Return the names in a function from which a loss is computed."""
        before = [
            each
            for each in inner(function)
            if isinstance(each, ast.stmt) and each is not function
            if each.lineno < loss.statement.lineno
        ]
        names, size = paths(loss.loss), 0
        while len(names) > size:
            size = len(names)
            for each in before:
                if not suites(each) and assigned(each) & names:
                    names |= paths(each)
        return names

    def _trains_model(self, forward: Forward) -> bool:
        """Tell whether a forward pass runs a model that amp handles, after amp was initialized."""
        assert forward.first is not None
        assert forward.last is not None
        function = self.program.source.function(forward.first)
        if any(
            each.function is function and each.statement.lineno > forward.first.lineno
            for each in self.program.initializes
        ):
            return False
        suite = self.flat(self.windows.suite(forward.first))
        whole = suite[suite.index(forward.first) : suite.index(forward.last) + 1]
        trains = not self.graph.reached(whole).isdisjoint(self.program.training)
        return not trains and any(map(self.graph.runs_model, whole))

    def _instances(self, class_: str) -> set[str]:
        """Return the names that instances of a class are assigned to."""
        return {
            last_name(target)
            for node in inner(self.program.source.tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and last_name(node.value.func) == class_
            for target in node.targets
        }

    def _models_elsewhere(self) -> None:
        """Add single statements that call a model, in functions that train or in their classes."""
        source = self.program.source
        training = [each for each in self.program.training if each is not None]
        classes = {source.class_(each) for each in training} - {None}
        covered = set(self.covered())
        for call in calls(source.tree):
            function = source.function(call)
            statement = source.statement(call)
            if (
                not self._is_forward(call)
                or statement in covered
                or statement in self.windows.branches.dead
                or suites(statement)
                or isinstance(statement, ast.Return)
                or precedes_initialize(self.program, statement)
                or _evaluates(self.program, call, function)
            ):
                continue
            trains = function in training if function is not None else self._in_loop(statement)
            methods = source.class_(function) in classes if function is not None else False
            if trains or (
                methods
                and function is not None
                and follows_initialize(self.program, self.graph, function)
            ):
                covered.add(statement)
                self.found.append(Forward(statement, statement))

    def _in_loop(self, statement: ast.stmt) -> bool:
        """Tell whether a statement at module level is in a loop that scales a loss."""
        source = self.program.source
        around = {each for each in source.above(statement) if isinstance(each, ast.For | ast.While)}
        return any(
            source.function(each.statement) is None
            and not around.isdisjoint(source.above(each.statement))
            for each in self.program.losses
        )

    def _is_forward(self, call: ast.Call) -> bool:
        """Tell whether a call runs a model: `model(...)` or `model.forward...(...)`."""
        path = self.program.source.code(call.func)
        owner, _, method = path.rpartition(".")
        known = self.program.models
        return path in known or (method.startswith("forward") and owner in known)

    def covered(self) -> Iterator[ast.AST]:
        """Yield all nodes under autocast."""
        for forward in self.found:
            if forward.first is None or forward.last is None:
                continue
            suite = self.flat(self.windows.suite(forward.first))
            for each in suite[suite.index(forward.first) : suite.index(forward.last) + 1]:
                yield from inner(each)

    def _merge(self) -> None:
        """Merge forward passes that overlap, for example if several losses share one."""
        kept: list[Forward] = []
        bare = [each for each in self.found if each.first is None]
        placed = [each for each in self.found if each.first is not None]
        for each in sorted(placed, key=lambda each: _lines(each)[0]):
            over = next((one for one in kept if _lines(each)[0] <= _lines(one)[1]), None)
            if over is None:
                kept.append(each)
                continue
            assert over.first is not None
            assert each.last is not None
            if _lines(each)[1] > _lines(over)[1] and self._in_one_suite(over.first, each.last):
                over.last = each.last
            if each.hoisted is not None:
                bare.append(Forward(None, None, each.hoisted))
        self.found = kept + bare


def _lines(forward: Forward) -> tuple[int, int]:
    assert forward.first is not None
    assert forward.last is not None
    return forward.first.lineno, last_line(forward.last)


def _filled(node: ast.AST) -> set[str]:
    """Return the lists, sets and dicts to which a node adds items."""
    return {
        path
        for call in calls(node)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _FILLING
        for path in [dotted(call.func.value)]
        if path is not None
    }


def _reduces(node: ast.AST) -> bool:
    """Tell whether a node takes a mean or sum by a function of torch, which autocast may cast."""
    reductions = {"mean", "sum"}
    return any(
        isinstance(each.func, ast.Attribute) and each.func.attr in reductions
        for each in calls(node)
    )


def _evaluates(program: Program, call: ast.Call, function: Function | None) -> bool:
    """Tell whether a call of a model is for evaluation: under `no_grad`, or in eval mode."""
    code = program.source.code
    for each in program.source.above(call):
        if each is function:
            break
        if isinstance(each, ast.With) and any(
            "no_grad" in code(item.context_expr) for item in each.items
        ):
            return True
    if function is None:
        return False
    if any("no_grad" in code(each) for each in function.decorator_list):
        return True
    owners = {code(call.func), code(call.func).rpartition(".")[0]}
    modes = [each.func for each in calls(function) if isinstance(each.func, ast.Attribute)]
    if any(each.attr == "train" and code(each.value) in owners for each in modes):
        return False  # it is another model that is in eval mode
    return any(each.attr == "eval" for each in modes)
