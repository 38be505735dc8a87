"""What a program does with amp: where it initializes it, with what, and who uses it.

A first reading of the whole program, so that what is rewritten at one line can take account of what
another line says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from halfstep.migrate.names import Imports, argument, assigned_names, calls, code, dotted

INITIALIZE = "apex.amp.initialize"
SCALE_LOSS = "apex.amp.scale_loss"
MASTER_PARAMS = "apex.amp.master_params"
WRAPPERS = {
    "DistributedDataParallel",
    "DDP",
    "DataParallel",
    "compile",
    "convert_syncbn_model",
    "convert_sync_batchnorm",
}
CLIPS = {"clip_grad_norm_": "clip_norm", "clip_grad_norm": "clip_norm"}
CLIPS |= {"clip_grad_value_": "clip_value"}


@dataclass(frozen=True, slots=True)
class Scope:
    """Where something stands: the outermost function, and the class if it is a method."""

    function: cst.FunctionDef | None = None
    class_: cst.ClassDef | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Initialize:
    """A call of `amp.initialize`.

    Attributes:
        call: The call.
        scope: Where it stands.
        models: Sources of the models, one or several.
        optimizers: Sources of the optimizers.
        optimizer_text: The optimizers as they were given.
        conditional: Whether it stands in a branch.
    """

    call: cst.Call
    scope: Scope
    models: list[str]
    optimizers: list[str]
    optimizer_text: str
    conditional: bool


@dataclass(eq=False)
class Clip:
    """A call that clips `amp.master_params(...)`.

    Attributes:
        call: The call.
        setting: The engine's name for it: clip_norm or clip_value; "" if it only measures.
        limit: Source of the limit.
        condition: Source of the test that decides whether it is called, or None.
        value_used: Whether the norm that it returns is used.
        whose: Source of the optimizer whose gradients they are.
    """

    call: cst.Call
    setting: str
    limit: str
    condition: str | None
    value_used: bool
    whose: str


@dataclass
class Program:
    """The facts."""

    module: cst.Module
    imports: Imports
    initializes: list[Initialize] = field(default_factory=list)
    uses: list[Scope] = field(default_factory=list)
    optimizers: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    clips: list[Clip] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    several_optimizers: bool = False

    @classmethod
    def read(cls, module: cst.Module) -> Program:
        """Read a program."""
        program = cls(module, Imports(module))
        module.visit(_Reader(program))
        for initialize in program.initializes:
            program.optimizers.update(initialize.optimizers)
            program.models.update(initialize.models)
        program.several_optimizers = any(
            len(initialize.optimizers) > 1 or _is_list(module, initialize.optimizer_text)
            for initialize in program.initializes
        )
        _follow_wrapped(module, program.models)
        return program

    def is_scale_loss(self, node: cst.CSTNode) -> bool:
        """Tell whether a statement is `with amp.scale_loss(...) as x:`."""
        return isinstance(node, cst.With) and any(
            isinstance(item.item, cst.Call) and self.imports.qualified(item.item.func) == SCALE_LOSS
            for item in node.items
        )

    def holds_scale_loss(self, node: cst.CSTNode) -> bool:
        """Tell whether a node has a `scale_loss` in it, at any depth."""
        return any(self.imports.qualified(call.func) == SCALE_LOSS for call in calls(node))

    def clip_of(self, node: cst.CSTNode) -> Clip | None:
        """Return the clip that a statement is or holds."""
        here = calls(node)
        return next((clip for clip in self.clips if any(clip.call is call for call in here)), None)

    def runs_model(self, node: cst.CSTNode) -> bool:
        """Tell whether a node calls a model."""
        return any(dotted(call.func) in self.models for call in calls(node))

    def method_call(self, node: cst.CSTNode, method: str) -> str | None:
        """Return `x` for the statement `x.method(...)`, where x is a model or an optimizer."""
        if not (isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1):
            return None
        expression = node.body[0]
        if not (isinstance(expression, cst.Expr) and isinstance(expression.value, cst.Call)):
            return None
        function = expression.value.func
        if not (isinstance(function, cst.Attribute) and function.attr.value == method):
            return None
        owner = code(function.value)
        return owner if owner in self.optimizers | self.models else None


class _Reader(cst.CSTVisitor):
    def __init__(self, program: Program) -> None:
        self.program = program
        self.functions: list[cst.FunctionDef] = []
        self.classes: list[cst.ClassDef] = []
        self.ifs: list[cst.If] = []
        self.used_values: set[cst.Call] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802  (libcst's)
        self.functions.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:  # noqa: N802
        self.functions.remove(original_node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802
        self.classes.append(node)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:  # noqa: N802
        self.classes.remove(original_node)

    def visit_If(self, node: cst.If) -> None:  # noqa: N802
        self.ifs.append(node)

    def leave_If(self, original_node: cst.If) -> None:  # noqa: N802
        self.ifs.remove(original_node)

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        self.program.names.add(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        if isinstance(node.value, cst.Call):
            self.used_values.add(node.value)

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        name = self.program.imports.qualified(node.func)
        if name is not None and name.startswith("apex.amp."):
            function = self.functions[0] if self.functions else None
            scope = Scope(function, self.classes[0] if self.classes else None)
            self.program.uses.append(scope)
            if name == INITIALIZE:
                self._initialize(node, scope)
            elif name == SCALE_LOSS:
                given = argument(node, "optimizers", 1)
                if given is not None:
                    self.program.optimizers.update(elements(given))
        self._clip(node)

    def _initialize(self, call: cst.Call, scope: Scope) -> None:
        models, optimizers = argument(call, "models", 0), argument(call, "optimizers", 1)
        given = [] if optimizers is None else elements(optimizers)
        text = "" if optimizers is None else code(optimizers)
        named = [] if models is None else elements(models)
        initialize = Initialize(call, scope, named, given, text, bool(self.ifs))
        self.program.initializes.append(initialize)

    def _asks_for_masters(self, node: cst.CSTNode) -> list[cst.Call]:
        qualified = self.program.imports.qualified
        return [call for call in calls(node) if qualified(call.func) == MASTER_PARAMS]

    def _clip(self, call: cst.Call) -> None:
        name = (dotted(call.func) or "").rpartition(".")[2]
        masters = self._asks_for_masters(call.args[0].value) if call.args else []
        limit = argument(call, "max_norm", 1) or argument(call, "clip_value", 1)
        kind = argument(call, "norm_type", 2)
        used = call in self.used_values
        if masters and used and "norm" in name and len(call.args) == 1:
            # A function that measures gradients, in place of a clip.
            self.program.clips.append(Clip(call, "", "", None, used, code(masters[0])))
        if name not in CLIPS or not masters or limit is None:
            return
        if kind is not None and code(kind) not in {"2", "2.0"}:
            return
        # An `if` around the clip alone is a condition; one around backward or step is another's.
        around = self.ifs[-1] if self.ifs else None
        alone = around is not None and not (
            self.program.holds_scale_loss(around)
            or _steps(around)
            or (around.orelse is not None and not self._asks_for_masters(around.orelse))
        )
        condition = code(around.test) if around is not None and alone else None
        self.program.clips.append(
            Clip(call, CLIPS[name], code(limit), condition, used, code(masters[0]))
        )


def elements(expression: cst.BaseExpression) -> list[str]:
    """Return the sources of the entries of a list or tuple, or that of the expression itself."""
    if isinstance(expression, cst.List | cst.Tuple):
        return [code(element.value) for element in expression.elements]
    return [code(expression)]


def _steps(node: cst.CSTNode) -> bool:
    return any(
        isinstance(call.func, cst.Attribute) and call.func.attr.value == "step"
        for call in calls(node)
    )


def _is_list(module: cst.Module, name: str) -> bool:
    """Tell whether a program assigns a list to `name`."""
    found = False

    class Look(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
            nonlocal found
            targets = {code(target.target) for target in node.targets}
            if name in targets and isinstance(node.value, cst.List | cst.ListComp | cst.Tuple):
                found = True

    module.visit(Look())
    return found


def _follow_wrapped(module: cst.Module, models: set[str]) -> None:
    """Add the names of what the models are wrapped in: `ddp = DDP(model)`."""

    class Look(cst.CSTVisitor):
        def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
            call = node.value
            if not isinstance(call, cst.Call) or not call.args:
                return
            name = (dotted(call.func) or "").rpartition(".")[2]
            if name in WRAPPERS and code(call.args[0].value) in models:
                models.update(assigned_names(node))

    module.visit(Look())
