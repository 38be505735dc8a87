"""The tests under which amp is initialized.

If a program trains with and without amp, the rewritten program creates the engine or scaler in both
cases, and switches it off in the second. Tests that have nothing to do with amp do not change.
"""

from __future__ import annotations

import ast
import re
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import assigned, bound, calls, dotted, last_name, paths
from halfstep.migrate.program.source import Function, inner

if TYPE_CHECKING:
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.program.program import Initialize

CHANGES = (
    "losses are scaled only if amp has been initialized, and that changes while the program runs"
)
SOMETIMES = (
    "the function that initializes amp is called only under this condition; otherwise, nothing is "
    "built. Put the condition into that function"
)
RETURNS = (
    "the function returns here without amp, so nothing would be built for the training without "
    "amp, which is in another function; put only amp.initialize under the condition, without a "
    "return"
)
_ABOUT_AMP = re.compile(
    r"amp|apex|fp16|fp_16|half|mixed|opt_level|precision|float16", re.IGNORECASE
)
_BINDS = ast.Assign | ast.AugAssign | ast.AnnAssign
_COMPREHENSIONS = ast.ListComp | ast.GeneratorExp | ast.DictComp
_PURE = {
    *("hasattr", "getattr", "isinstance", "len", "bool", "int", "str", "is_available", "get"),
    *("lower", "upper", "startswith", "endswith", "all", "any"),
}


def guards(about: Understanding, given: Initialize) -> list[ast.If]:
    """Return the `if`s that decide whether `amp.initialize` is called, outermost first.

    The list is empty if the program has no branch that trains in plain fp32.
    """
    source = about.program.source
    switches = [node for node in about.branches.switches if about.program.losses_in(node)]
    if not switches:
        return []
    names = set().union(*(_asked(each.test) for each in switches))
    way = source.way_in(given.statement, given.function)
    found = []
    for outer, each in pairwise(way):
        if not isinstance(outer, ast.If) or _is_main(outer):
            continue
        about_amp = _ABOUT_AMP.search(source.code(outer.test)) or (_asked(outer.test) & names)
        inside = any(outer in source.above(switch) for switch in switches)
        if inside or (not about_amp and _makes(outer, given, each)):
            continue
        found.append(outer)
    return [each for each in found if not source.is_elif(each) or source.parent[each] not in found]


def changing(about: Understanding, given: Initialize, tests: list[ast.If]) -> bool:
    """Tell whether the result of a test around an `amp.initialize` may change during the run."""
    source = about.program.source
    for test in tests:
        names = paths(test.test)
        own = [
            each
            for each in inner(test)
            if isinstance(each, _BINDS) and not _without_apex(about, each)
        ]
        changed = {name for each in own for name in bound(each)} - set(given.bound)
        if any(_is_of(one, other) for one in _asked(test.test) for other in changed):
            return True
        loop = source.loop(test)
        while loop is not None:
            if isinstance(loop, ast.For) and names & paths(loop.target):
                return True
            loop = source.loop(loop)
    return False


def _without_apex(about: Understanding, statement: ast.stmt) -> bool:
    """Tell whether a statement runs only if Apex is not installed: under `if amp is None`."""
    program = about.program
    for around in program.source.above(statement):
        test = around.test if isinstance(around, ast.If) else None
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is):
            body = around.body if isinstance(around, ast.If) else []
            if program.imports.qualified(test.left) in {"apex", "apex.amp"}:
                return any(statement in inner(each) for each in body)
    return False


def _asked(test: ast.expr) -> set[str]:
    """Return the names and attribute chains (`a.b.c`, in full) that a test reads."""
    found: set[str] = set()
    stack: list[ast.AST] = [test]
    while stack:
        each = stack.pop()
        path = dotted(each)
        if path is not None:
            found.add(path)
        else:
            stack += ast.iter_child_nodes(each)
    return found


def _is_of(one: str, other: str) -> bool:
    """Tell whether binding `other` changes `one`: they are equal, or `one` is `other.x`."""
    return one == other or one.startswith(f"{other}.")


def simple(about: Understanding, given: Initialize, tests: list[ast.If]) -> ast.If | None:
    """Return the `if` around `amp.initialize` if it does nothing else.

    It can then be replaced by one statement that creates the engine or scaler.
    """
    source = about.program.source
    if len(tests) != 1 or len(about.trained) != 1:
        return None
    (only,) = tests
    if only.orelse or source.is_elif(only) or given.statement not in only.body:
        return None
    pure = all(last_name(call.func) in _PURE for call in calls(only.test))
    others = [each for each in only.body if each is not given.statement]
    return only if pure and all(_imports(each) for each in others) else None


def branches_without(about: Understanding, test: ast.If) -> tuple[list[ast.stmt], bool]:
    """Return the last statement of each branch of `test` that does not initialize amp.

    Branches that end the function or the program are left out.

    Returns:
        The statements, and whether the `if` has no `else`.
    """
    found: list[ast.stmt] = []
    trained = [each.statement for each in about.trained]
    node = test
    while True:
        has = any(each in inner(one) for one in node.body for each in trained)
        if not has and not _leaves(node.body[-1]):
            found.append(node.body[-1])
        orelse = node.orelse
        if len(orelse) == 1 and about.program.source.is_elif(orelse[0]):
            assert isinstance(orelse[0], ast.If)
            node = orelse[0]
            continue
        has = any(each in inner(one) for one in orelse for each in trained)
        if orelse and not has and not _leaves(orelse[-1]):
            found.append(orelse[-1])
        return found, not orelse


def repeated(about: Understanding, given: Initialize) -> bool:
    """Tell whether one `amp.initialize` runs for several models that train side by side."""
    source, statement = about.program.source, given.statement
    losses = [each.statement for each in about.program.losses if about.live(each)]
    loop = source.loop(statement)
    if loop is not None:
        outside = [each for each in losses if loop not in source.above(each)]
        called = {last_name(call.func) for call in calls(loop)}
        return any(
            source.function(each) is given.function or _collects(loop, given)
            for each in outside
            if getattr(source.function(each), "name", None) not in called
        )
    if given.function is None or any(given.function in source.above(each) for each in losses):
        return False
    calls_of = about.graph.calls_of(given.function)
    if any(isinstance(each, _COMPREHENSIONS) for call in calls_of for each in source.above(call)):
        return True
    places = [source.statement(call) for call in calls_of]
    return any(
        source.function(one) is source.function(two) and about.windows.apart(one, two) is not None
        for one, two in combinations(places, 2)
    )


def called_for_amp(about: Understanding, given: Initialize) -> ast.Call | None:
    """Return a call of the function that initializes amp, if the call is under a test on amp.

    If the test is false, nothing would create the engine or scaler.
    """
    source = about.program.source
    switches = [node for node in about.branches.switches if about.program.losses_in(node)]
    names = set().union(*(_asked(each.test) for each in switches)) if switches else set()
    if given.function is None or not names:
        return None
    for call in about.graph.calls_of(given.function):
        for around in source.above(call):
            if isinstance(around, Function):
                break
            if isinstance(around, ast.If) and not _is_main(around):
                test = around.test
                if _ABOUT_AMP.search(source.code(test)) or _asked(test) & names:
                    return call
    return None


def returned_before(about: Understanding, given: Initialize, tests: list[ast.If]) -> ast.AST | None:
    """Return a `return` under a test on amp that ends the function without `amp.initialize`.

    Only if a loss is in a function that this one does not call: it would then be trained without
    an engine or scaler.
    """
    source, function = about.program.source, given.function
    switches = [node for node in about.branches.switches if about.program.losses_in(node)]
    if function is None or not switches:
        return None
    reached = about.graph.reached([function])
    if all(
        function in source.above(each.statement) or source.function(each.statement) in reached
        for each in about.program.losses
    ):
        return None
    names = set().union(*(_asked(each.test) for each in switches))
    for node in inner(function, functions=False):
        if isinstance(node, ast.Return) and not _is_initialized(about, node):
            for around in source.way_in(node, function):
                if isinstance(around, ast.If) and (around in tests or _asked(around.test) & names):
                    return node
    return None


def _is_initialized(about: Understanding, node: ast.Return) -> bool:
    """Tell whether a `return` contains an `amp.initialize`, or runs after one."""
    return any(
        each.statement is node
        or (
            each.statement.lineno < node.lineno
            and about.windows.apart(each.statement, node) is not None
        )
        for each in about.trained
    )


def _collects(loop: ast.AST, given: Initialize) -> bool:
    """Tell whether a loop collects the models that it initializes in lists."""
    if any("[" in each for each in given.bound):
        return True
    return any(
        last_name(call.func) == "append" and paths(call.args[0]) & set(given.bound)
        for call in calls(loop)
        if call.args
    )


def _is_main(node: ast.If) -> bool:
    return "__name__" in paths(node.test)


def _makes(outer: ast.If, given: Initialize, inside: ast.stmt) -> bool:
    """Tell whether a test decides which models or optimizers are created: it is not about amp."""
    side = outer.body if inside in outer.body else outer.orelse
    before = [each for each in side if each.lineno < given.statement.lineno]
    made = set().union(*(assigned(each) for each in before)) if before else set()
    return bool(made & {*given.models, *given.optimizers})


def _imports(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Try):
        return all(isinstance(each, ast.Import | ast.ImportFrom) for each in statement.body)
    return isinstance(statement, ast.Import | ast.ImportFrom | ast.Pass)


def _leaves(statement: ast.stmt) -> bool:
    """Tell whether a statement ends the program or the function."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return last_name(statement.value.func) in {"exit", "quit", "abort"}
    return isinstance(statement, ast.Raise | ast.Return)
