"""Forward passes that may also run without `amp.initialize`, such as in a separate evaluation.

With Apex, torch's functions were then not patched, and the program ran in fp32. In the rewritten
program, these forward passes use the engine or scaler, which does not exist then.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.migrate.analysis.regions import Forwards
    from halfstep.migrate.program.source import Function, Source

NO_OBJECT = (
    "{} also reaches this line, possibly without amp.initialize: build {} before, or it fails"
)


def without_initialize(forwards: Forwards) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the first statement of each such forward pass, with the code that reaches it.

    That code is a text for a message: "line 12" for a call, or the name of a function.
    """
    source = forwards.program.source
    homes = {each.function for each in forwards.program.initializes if each.optimizers}
    for forward in forwards.found:
        if forward.first is None:
            continue
        function = source.function(forward.first)
        if (
            function is not None
            and function not in homes
            and _may_not_train(forwards, forward.first)
        ):
            yield from ((forward.first, each) for each in _ways(forwards, function, {function}))


def _ways(forwards: Forwards, function: Function, seen: set[Function]) -> Iterator[str]:
    """Yield the code that reaches a function without amp having been initialized."""
    source = forwards.program.source
    for call in forwards.graph.calls_of(function):
        caller = source.function(call)
        if caller in seen:
            continue
        starts = _starts(forwards, caller)
        if starts:
            if not any(_comes_first(source, start, call) for start in starts):
                yield f"line {source.number(call.lineno)}"
        elif caller is not None:
            seen.add(caller)
            if forwards.graph.calls_of(caller):
                yield from _ways(forwards, caller, seen)
            elif not _trains(forwards, caller, function) and not _is_made_so(forwards, caller):
                yield f"`{caller.name}`"


def _starts(forwards: Forwards, function: Function | None) -> list[ast.AST]:
    """Return the calls in a function that initialize amp, directly or through other functions."""
    source, graph = forwards.program.source, forwards.graph
    given = [each for each in forwards.program.initializes if each.optimizers]
    homes = {each.function for each in given if each.function is not None}
    found: list[ast.AST] = [each.call for each in given if each.function is function]
    body = source.tree if function is None else function
    found += [
        call
        for call in calls(body)
        if source.function(call) is function
        and not homes.isdisjoint(graph.reached(graph.called(call)))
    ]
    return found


def _comes_first(source: Source, start: ast.AST, call: ast.AST) -> bool:
    """Tell whether `start` precedes `call`, and is not in another branch of an `if`."""
    below = set(source.above(call))
    sides = [
        each.orelse if any(start in inner(one) for one in each.body) else each.body
        for each in source.above(start)
        if isinstance(each, ast.If) and each in below
    ]
    apart = any(call in inner(one) for side in sides for one in side)
    assert isinstance(start, ast.Call)
    assert isinstance(call, ast.Call)
    return start.lineno < call.lineno and not apart


def _trains(forwards: Forwards, root: Function, function: Function) -> bool:
    reached = forwards.graph.reached([root])
    return not reached.isdisjoint(_training(forwards) - {function})


def _training(forwards: Forwards) -> set[ast.AST]:
    return {each for each in forwards.program.training if each is not None}


def _may_not_train(forwards: Forwards, first: ast.stmt) -> bool:
    """Tell whether a forward pass may run without a backward.

    That is so if its function scales no loss, or scales each loss under a further test.
    """
    source, program = forwards.program.source, forwards.program
    beside = [
        loss.statement
        for loss in program.losses
        if source.function(loss.statement) is source.function(first)
    ]
    tests = {each for each in source.above(first) if isinstance(each, ast.If)}
    return all(
        any(
            isinstance(each, ast.If) and each not in {*tests, *forwards.windows.branches.switches}
            for each in source.way_in(loss, source.function(loss))
        )
        for loss in beside
    )


def _is_made_so(forwards: Forwards, root: Function) -> bool:
    """Tell whether the `__init__` of a method's class initializes amp."""
    class_ = forwards.program.source.class_(root)
    makers = [
        each for each in getattr(class_, "body", ()) if getattr(each, "name", "") == "__init__"
    ]
    homes = {each.function for each in forwards.program.initializes}
    return not forwards.graph.reached(makers).isdisjoint(homes)
