"""Forward passes that also run where amp was not initialized, as in an evaluation by itself.

Apex changed torch's functions, so that such a program ran in fp32 there. What takes amp's place is
an object, which does not exist then.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.migrate.regions import Forwards
    from halfstep.migrate.source import Function

NO_OBJECT = "`{}` comes here too, and it does not initialize amp: build {} for it, or it fails here"


def without_initialize(forwards: Forwards) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the first statements of forward passes, each with a function that leads to it so."""
    source = forwards.program.source
    homes = {each.function for each in forwards.program.initializes if each.optimizers}
    if None in homes:
        return
    for forward in forwards.found:
        if forward.first is None:
            continue
        function = source.function(forward.first)
        if function is None or function in homes or not _may_not_train(forwards, forward.first):
            continue
        for root in forwards.graph.roots(function) - {None, function}:
            assert root is not None
            reached = forwards.graph.reached([root])
            trains = not reached.isdisjoint(_training(forwards) - {function})
            if reached.isdisjoint(homes) and not trains and not _made_with_object(forwards, root):
                yield forward.first, root.name


def _training(forwards: Forwards) -> set[ast.AST]:
    return {each for each in forwards.program.training if each is not None}


def _may_not_train(forwards: Forwards, first: ast.stmt) -> bool:
    """Tell whether a forward pass may come without a backward: no loss of its, or under a test."""
    source, program = forwards.program.source, forwards.program
    beside = [
        loss.statement
        for loss in program.losses
        if source.function(loss.statement) is source.function(first)
    ]
    tests = {each for each in source.above(first) if isinstance(each, ast.If)}
    return all(
        any(
            isinstance(each, ast.If) and each not in {*tests, *forwards.windows.branches.amp}
            for each in source.way_in(loss, source.function(loss))
        )
        for loss in beside
    )


def _made_with_object(forwards: Forwards, root: Function) -> bool:
    """Tell whether amp is initialized where an object of the class of a method is made."""
    class_ = forwards.program.source.class_(root)
    makers = [
        each for each in getattr(class_, "body", ()) if getattr(each, "name", "") == "__init__"
    ]
    homes = {each.function for each in forwards.program.initializes}
    return not forwards.graph.reached(makers).isdisjoint(homes)
