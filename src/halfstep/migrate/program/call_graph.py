"""The call graph of a program, found by names alone.

`name()` may call any function of that name in the same file or the one that the file imports,
`self.name()` a method of the class or of a class that it is related to, and any other `x.name()` a
method `name` of any class of the program, unless `x` is a model or a module: `model.train()` does
not call the program's own `train`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import argument, calls, dotted, last_name
from halfstep.migrate.program.source import Function, inner

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halfstep.migrate.program.names import Imports
    from halfstep.migrate.program.source import Source

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
        source: The source of the program.
        imports: Its imports.
        models: The source of each expression that refers to a model that amp handles.
    """

    def __init__(self, source: Source, imports: Imports, models: set[str]) -> None:
        self.source, self.imports, self.models = source, imports, models
        self._functions: dict[str, list[Function]] = {}
        self._classes: dict[str, list[ast.ClassDef]] = {}
        for node in inner(source.tree):
            if isinstance(node, Function):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self._classes.setdefault(node.name, []).append(node)
        self._callees: dict[ast.AST, set[Function]] = {}

    def called(self, call: ast.Call) -> list[Function]:
        """Return the functions of the program that a call may run."""
        source, path = self.source, dotted(call.func)
        name = path.rpartition(".")[2] if path else getattr(call.func, "attr", "")
        owner = path.rpartition(".")[0] if path else "?"
        defined = self.imports.defined(path, call)
        if defined is not None:
            home, name = defined
            owner, _, name = name.rpartition(".")
        else:
            home = source.file(call).name
        found = self._functions.get(name, [])
        if not owner:
            class_ = self._class(name, home)
            if class_ is not None:
                made = self._functions.get("__init__", [])
                return [each for each in made if source.parent[each] in self._family(class_)]
            own = [each for each in found if not self._is_method(each)]
            return [each for each in own if source.file(each).name == home]
        if owner == "self":
            classes = self._family(source.class_(call))
            return [each for each in found if source.parent[each] in classes]
        if owner in self.models:
            return []
        return [each for each in found if self._is_method(each)]

    def class_of(self, call: ast.Call) -> ast.ClassDef | None:
        """Return the class of the program that a call creates an object of, or None."""
        path = dotted(call.func)
        home, name = self.imports.defined(path, call) or (self.source.file(call).name, path)
        return self._class(name, home) if name else None

    def _class(self, name: str, home: str) -> ast.ClassDef | None:
        found = self._classes.get(name, ())
        return next((each for each in found if self.source.file(each).name == home), None)

    def root_of(self, class_: ast.ClassDef) -> ast.ClassDef:
        """Return the class that stands for a class and all classes that it is related to."""
        return min(self._family(class_), key=lambda each: each.lineno)

    def _family(self, class_: ast.ClassDef | None) -> set[ast.ClassDef]:
        """Return a class, the classes it derives from, and those that derive from it."""
        if class_ is None:
            return set()
        found, below = {class_}, {class_}
        while below:
            bases = {last_name(base) for each in below for base in each.bases}
            below = {each for name in bases for each in self._classes.get(name, ())} - found
            found |= below
        every = [each for same in self._classes.values() for each in same]
        names, size = {class_.name}, 0
        while len(names) > size:
            size = len(names)
            names |= {each.name for each in every if names & {last_name(b) for b in each.bases}}
        return found | {each for each in every if each.name in names - {class_.name}}

    def methods(self, call: ast.Call) -> list[Function]:
        """Return the methods of the program's classes with the name that a call calls."""
        return [
            each for each in self._functions.get(last_name(call.func), ()) if self._is_method(each)
        ]

    def calls_of(self, function: Function) -> list[ast.Call]:
        """Return the calls that may run a function, except those in the function itself."""
        source = self.source
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
        known = self.models
        return path in known or (owner in known and method not in NO_FORWARD)

    def _called_in(self, node: ast.AST) -> set[Function]:
        if node not in self._callees:
            self._callees[node] = {each for call in calls(node) for each in self.called(call)}
        return self._callees[node]

    def _is_method(self, function: Function) -> bool:
        return isinstance(self.source.parent[function], ast.ClassDef)

    def passed(self, call: ast.Call, function: Function) -> Iterator[tuple[str, ast.expr]]:
        """Yield each parameter of a function that a call passes, with its argument."""
        names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if self._is_method(function) and names[:1] == ["self"]:
            names = names[1:]
        for place, name in enumerate(names):
            given = argument(call, name, place)
            if given is not None:
                yield name, given
