"""The call graph of a program, found by names alone.

`name()` may call any function of that name, `self.name()` the method of the same class, and any
other `x.name()` a method `name` of any class of the program, unless `x` is a model: `model.train()`
does not call the program's own `train`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import argument, calls, dotted
from halfstep.migrate.program.source import Function, inner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.migrate.program.program import Program

NO_FORWARD = {
    *("parameters", "named_parameters", "modules", "named_modules", "children", "named_children"),
    *("buffers", "named_buffers", "state_dict", "load_state_dict", "train", "eval", "to", "cuda"),
    *("cpu", "half", "float", "apply", "zero_grad", "requires_grad_", "register_buffer", "append"),
    *("register_forward_hook", "register_comm_hook", "no_sync", "share_memory", "type", "extend"),
    *("add_module", "get_parameter", "get_submodule", "init_weights", "save_pretrained", "size"),
    *("resize_token_embeddings", "items", "values", "keys", "__dict__", "print", "summary"),
}
"""Methods of models that do not run a forward pass."""


class CallGraph:
    """The calls of a program.

    Args:
        program: The parsed program.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._functions: dict[str, list[Function]] = {}
        for node in inner(program.source.tree):
            if isinstance(node, Function):
                self._functions.setdefault(node.name, []).append(node)
        self._callees: dict[ast.AST, set[Function]] = {}
        self._aliases = self._models_passed_on()

    def called(self, call: ast.Call) -> list[Function]:
        """Return the functions of the program that a call may run."""
        source, path = self.program.source, dotted(call.func)
        name = path.rpartition(".")[2] if path else getattr(call.func, "attr", "")
        found = self._functions.get(name, [])
        owner = path.rpartition(".")[0] if path else "?"
        if not owner:
            return [each for each in found if not self._is_method(each)]
        if owner == "self":
            class_ = source.class_(call)
            return [each for each in found if source.parent[each] is class_]
        if owner in self.program.models:
            return []
        return [each for each in found if self._is_method(each)]

    def calls_of(self, function: Function) -> list[ast.Call]:
        """Return the calls that may run a function, except those in the function itself."""
        source = self.program.source
        return [
            call
            for call in calls(source.tree)
            if function in self.called(call) and function not in source.above(call)
        ]

    def reached(self, start: Iterable[ast.AST]) -> set[ast.AST]:
        """Return the nodes in `start`, and every function that may run within them."""
        found = set(start)
        new = set(found)
        while new:
            new = {each for one in new for each in self._called_in(one) if each not in found}
            found |= new
        return found

    def runs_model(self, node: ast.AST) -> bool:
        """Tell whether a node, or a function called from it, calls a model that amp handles."""
        return any(self._is_of_model(call) for each in self.reached([node]) for call in calls(each))

    def _is_of_model(self, call: ast.Call) -> bool:
        path = dotted(call.func)
        if path is None:
            return False
        owner, _, method = path.rpartition(".")
        known = self.program.models | self._aliases.get(self.program.source.function(call), set())
        return path in known or (owner in known and method not in NO_FORWARD)

    def _called_in(self, node: ast.AST) -> set[Function]:
        if node not in self._callees:
            self._callees[node] = {each for call in calls(node) for each in self.called(call)}
        return self._callees[node]

    def _is_method(self, function: Function) -> bool:
        return isinstance(self.program.source.parent[function], ast.ClassDef)

    def _models_passed_on(self) -> dict[Function | None, set[str]]:
        """Return, for each function, the parameters that receive a model that amp handles."""
        found: dict[Function | None, set[str]] = {}
        changed = True
        while changed:
            changed = False
            for call in calls(self.program.source.tree):
                caller = self.program.source.function(call)
                known = self.program.models | found.get(caller, set())
                for function in self.called(call):
                    for name, given in self.passed(call, function):
                        if dotted(given) in known and name not in found.get(function, set()):
                            found.setdefault(function, set()).add(name)
                            changed = True
        return found

    def passed(self, call: ast.Call, function: Function) -> Iterator[tuple[str, ast.expr]]:
        """Yield each parameter of a function that a call passes, with its argument."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if self._is_method(function) and names[:1] == ["self"]:
            names = names[1:]
        for place, name in enumerate(names):
            given = argument(call, name, place)
            if given is not None:
                yield name, given
