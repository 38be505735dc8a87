"""The uses of amp in a program: where it initializes amp, scales losses, steps and zeroes.

This is the first pass over the whole program. migrate rewrites a program only if it understands
every use of amp, so each use found here is later either translated or a reason not to rewrite.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from halfstep.migrate.program.call_graph import CallGraph
from halfstep.migrate.program.names import (
    Imports,
    all_names,
    argument,
    calls,
    elements,
    targets,
)
from halfstep.migrate.program.objects import Objects
from halfstep.migrate.program.source import Function, inner
from halfstep.migrate.program.state import asks_for_state
from halfstep.migrate.program.unpacking import write_out

if TYPE_CHECKING:
    from halfstep.migrate.program.objects import Key
    from halfstep.migrate.program.source import Source

_PAIR = ("models", "optimizers")
INITIALIZE = "apex.amp.initialize"
SCALE_LOSS = "apex.amp.scale_loss"
MASTER_PARAMS = "apex.amp.master_params"


DISABLE_CASTS, INIT = "apex.amp.disable_casts", "apex.amp.init"
ONLY_CAST = {
    *(DISABLE_CASTS, INIT),
    *(f"apex.amp.{each}_function" for each in ("half", "float", "promote")),
    *(f"apex.amp.register_{each}_function" for each in ("half", "float", "promote")),
}
"""The functions of amp that have a counterpart without an engine or scaler."""


@dataclass(frozen=True, slots=True, eq=False)
class Initialize:
    """A call of `amp.initialize`.

    Attributes:
        call: The call.
        statement: The statement that contains the call.
        function: The function that contains the call, or None.
        models: The source of each model.
        optimizers: The source of each optimizer; empty for inference.
        models_text: The source of the whole argument `models`.
        optimizers_text: The source of the whole argument `optimizers`; "" for inference.
        bound: The source of each target that the result is assigned to.
    """

    call: ast.Call
    statement: ast.stmt
    function: Function | None
    models: list[str]
    optimizers: list[str]
    models_text: str
    optimizers_text: str
    bound: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class ScaledLoss:
    """A `with amp.scale_loss(...) as scaled:`, or a plain backward in a branch without amp.

    Attributes:
        statement: The `with`; without amp, the statement `loss.backward()`.
        call: The call of `scale_loss`; without amp, the call of `backward`.
        name: The name of the scaled loss; without amp, "".
        loss: The expression of the loss.
        optimizers: The source of each optimizer whose parameters the backward reaches.
    """

    statement: ast.With | ast.Expr
    call: ast.Call
    name: str
    loss: ast.expr
    optimizers: list[str]


@dataclass
class Program:
    """A parsed program, with every use of amp in it.

    Attributes:
        source: The text and the syntax tree.
        imports: Which names are Apex's.
        names: All names in the program.
        initializes: The calls of `amp.initialize`.
        losses: The scaled losses.
        odd_losses: Calls of `scale_loss` outside of a plain `with amp.scale_loss(...) as name:`.
        backwards: Calls of a method `backward`, of any object.
        steps: Calls of a method `step`, of any object.
        zero_grads: Calls of a method `zero_grad`, of any object.
        models: The source of each expression that refers to a model that amp handles.
        optimizers: The source of each expression that refers to an optimizer that amp handles, or
            to a list of them.
        unused: Assignments of arguments of `amp.initialize` that nothing else reads.
        amp_keys: The parameters and attributes that always get amp itself.
    """

    source: Source
    imports: Imports
    names: set[str]
    initializes: list[Initialize] = field(default_factory=list)
    losses: list[ScaledLoss] = field(default_factory=list)
    odd_losses: list[ast.Call] = field(default_factory=list)
    backwards: list[ast.Call] = field(default_factory=list)
    steps: list[ast.Call] = field(default_factory=list)
    zero_grads: list[ast.Call] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    optimizers: set[str] = field(default_factory=set)
    amp_keys: set[Key] = field(default_factory=set)
    unused: list[ast.stmt] = field(default_factory=list)
    _names: dict[ast.Module, set[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, source: Source) -> Program:
        """Find the uses of amp in a source."""
        imports = Imports(source)
        program = cls(source, imports, all_names(source.tree))
        if not imports.bound:
            return program
        program._follow_amp()
        with_losses: set[ast.Call] = set()
        for node in inner(source.tree):
            if isinstance(node, ast.With):
                loss = program._loss(node)
                if loss is not None:
                    program.losses.append(loss)
                    with_losses.add(loss.call)
            elif isinstance(node, ast.Call):
                program._call(node, with_losses)
        program._follow()
        return program

    @cached_property
    def graph(self) -> CallGraph:
        """The call graph."""
        return CallGraph(self.source, self.imports, self.models)

    @cached_property
    def objects(self) -> Objects:
        """The objects that the names of the program refer to."""
        return Objects(self.graph)

    @cached_property
    def several_optimizers(self) -> bool:
        """Whether amp handles more than one optimizer."""
        return any(
            len(each.optimizers) > 1
            or self._is_list(each.optimizers_text)
            or isinstance(argument(each.call, "optimizers", 1), ast.ListComp | ast.Call)
            for each in self.initializes
        )

    @property
    def training(self) -> list[Function | None]:
        """The functions that scale a loss; None stands for the top level of the module."""
        found = [self.source.function(each.statement) for each in self.losses]
        return list(dict.fromkeys(found))

    def loss_of(self, node: ast.AST) -> ScaledLoss | None:
        """Return the scaled loss whose statement is `node`, or None."""
        return next((each for each in self.losses if each.statement is node), None)

    def losses_in(self, node: ast.AST) -> list[ScaledLoss]:
        """Return the scaled losses in a node, at any depth."""
        return [
            each
            for each in self.losses
            if each.statement is node or node in self.source.above(each.statement)
        ]

    def uses_amp(self, node: ast.AST) -> bool:
        """Tell whether a node contains a name from `apex.amp`."""
        return any(
            (self.imports.qualified(each) or "").startswith("apex.amp")
            for each in inner(node)
            if isinstance(each, ast.Name | ast.Attribute)
        )

    def names_in(self, node: ast.AST) -> set[str]:
        """Return all names in the file of a node."""
        module = self.source.file(node).module
        if module not in self._names:
            self._names[module] = all_names(module)
        return self._names[module]

    def needs_engine(self, node: ast.AST) -> bool:
        """Tell whether a node uses a function of amp that needs an engine or scaler."""
        return bool(self.engine_uses(node))

    def engine_uses(self, node: ast.AST) -> list[ast.expr]:
        """Return the names of amp in a node that need an engine or scaler."""
        return [
            each
            for each in inner(node)
            if isinstance(each, ast.Name | ast.Attribute)
            and not isinstance(self.source.parent.get(each), ast.Attribute)
            and (self.imports.qualified(each) or "").startswith("apex.amp")
            and self.imports.qualified(each) not in ONLY_CAST
        ]

    def master_params(self, node: ast.AST) -> list[ast.Call]:
        """Return the calls of `amp.master_params` in a node."""
        return [
            call
            for call in calls(node)
            if self.imports.qualified(call.func) == MASTER_PARAMS and call.args
        ]

    def _loss(self, node: ast.With) -> ScaledLoss | None:
        """Return the scaled loss of a `with amp.scale_loss(...) as scaled:`; None for any other."""
        item = node.items[0]
        call = item.context_expr
        if not isinstance(call, ast.Call) or self.imports.qualified(call.func) != SCALE_LOSS:
            return None
        loss, given = argument(call, "loss", 0), argument(call, "optimizers", 1)
        plain = isinstance(item.optional_vars, ast.Name) and len(node.items) == 1
        if loss is None or given is None or not plain:
            return None
        assert isinstance(item.optional_vars, ast.Name)
        optimizers = [self.source.code(each) for each in elements(given)]
        return ScaledLoss(node, call, item.optional_vars.id, loss, optimizers)

    def _call(self, node: ast.Call, with_losses: set[ast.Call]) -> None:
        name = self.imports.qualified(node.func)
        if name == INITIALIZE:
            self._initialize(node)
        elif name == SCALE_LOSS and node not in with_losses:
            self.odd_losses.append(node)
        elif isinstance(node.func, ast.Attribute):
            method = {"backward": self.backwards, "step": self.steps, "zero_grad": self.zero_grads}
            if node.func.attr in method:
                method[node.func.attr].append(node)

    def _initialize(self, call: ast.Call) -> None:
        code = self.source.code
        self.unused += write_out(self.source, call)
        models, optimizers = argument(call, "models", 0), argument(call, "optimizers", 1)
        if isinstance(optimizers, ast.Constant) and optimizers.value is None:
            optimizers = None
        statement = self.source.statement(call)
        bound = [] if not isinstance(statement, ast.Assign) else targets(statement)
        self.initializes.append(
            Initialize(
                call,
                statement,
                self.source.function(call),
                [] if models is None else [code(each) for each in elements(models)],
                [] if optimizers is None else [code(each) for each in elements(optimizers)],
                "" if models is None else code(models),
                "" if optimizers is None else code(optimizers),
                [code(each) for each in bound],
            )
        )

    def _follow_amp(self) -> None:
        """Find the parameters and attributes that always get amp itself."""
        imports, objects = self.imports, self.objects
        given = [
            node
            for node in inner(self.source.tree)
            if isinstance(node, ast.Name | ast.Attribute)
            and imports.qualified(node) == "apex.amp"
            and isinstance(self.source.parent[node], ast.Call | ast.keyword | ast.Assign)
        ]
        known = objects.passed_on(given) if given else set()
        known = {key for key in known if self._always_gets(key, known)}
        known = {key for key in known if not _saves_only(self, key)}
        imports.aliases = frozenset(name.rpartition(".")[2] for _, name in known)
        imports.is_alias = lambda node: objects.key(node) in known
        self.amp_keys = known

    def follows_amp(self, node: ast.AST) -> bool:
        """Tell whether all that gets amp from an assignment or a call is known.

        Args:
            node: Amp as the value of an assignment or an argument.
        """
        parent = self.source.parent[node]
        if isinstance(parent, ast.Assign):
            return all(self.objects.key(each) in self.amp_keys for each in parent.targets)
        call = self.source.parent[parent] if isinstance(parent, ast.keyword) else parent
        if not isinstance(call, ast.Call):
            return False
        functions = self.graph.called(call)
        return bool(functions) and all(
            any((each, name) in self.amp_keys for name, given in pairs if given is node)
            for each in functions
            for pairs in [list(self.graph.passed(call, each))]
        )

    def _always_gets(self, key: Key, known: set[Key]) -> bool:
        """Tell whether each call passes a known object for a parameter; True for an attribute."""
        function, name = key
        if not isinstance(function, Function):
            return name.startswith("self.")
        given = [dict(self.graph.passed(call, function)) for call in self.graph.calls_of(function)]
        return all(
            self.imports.qualified(each.get(name)) == "apex.amp"
            or self.objects.key(each.get(name)) in known
            for each in given
        )

    def _follow(self) -> None:
        """Collect all names of the models and optimizers, also those of results and wrappers."""
        for each in self.initializes:
            self.models.update(each.models)
            self.optimizers.update({*each.optimizers, each.optimizers_text} - {""})
            result = each.statement
            if isinstance(result, ast.Assign) and len(result.targets) == 1 and each.optimizers:
                pair = elements(result.targets[0])
                if len(pair) == 2:
                    self.models.update(map(self.source.code, elements(pair[0])))
                    self.optimizers.update(map(self.source.code, elements(pair[1])))
        for loss in self.losses:
            self.optimizers.update(loss.optimizers)
            given = argument(loss.call, "optimizers", 1)
            if given is not None:
                self.optimizers.add(self.source.code(given))
        objects = self.objects
        trained = [each for each in self.initializes if each.optimizers]
        results = [
            elements(each.statement.targets[0])
            for each in trained
            if isinstance(each.statement, ast.Assign) and len(each.statement.targets) == 1
        ]
        for names, place in ((self.models, 0), (self.optimizers, 1)):
            nodes = [argument(each.call, _PAIR[place], place) for each in trained]
            nodes += [pair[place] for pair in results if len(pair) == len(_PAIR)]
            if names is self.optimizers:
                nodes += [argument(each.call, "optimizers", 1) for each in self.losses]
            parts = [part for each in nodes if each is not None for part in elements(each)]
            names.update(objects.texts(objects.labelled(parts)))

    def _is_list(self, name: str) -> bool:
        """Tell whether a program assigns a list to `name`."""
        lists = ast.List | ast.ListComp | ast.Tuple
        return any(
            isinstance(node, ast.Assign)
            and isinstance(node.value, lists)
            and name in map(self.source.code, node.targets)
            for node in inner(self.source.tree)
        )


def _saves_only(program: Program, key: Key) -> bool:
    """Tell whether a function only saves, loads or tests a parameter."""
    function, name = key
    return isinstance(function, Function) and asks_for_state(program.source, function, name)
