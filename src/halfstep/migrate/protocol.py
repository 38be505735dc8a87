"""What the statements of amp's protocol say: initialize, scale_loss, and their plain fp32 twins."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from halfstep.migrate.names import (
    argument,
    assigned_names,
    calls,
    code,
    dotted,
    statements,
    used_names,
)
from halfstep.migrate.program import CLIPS, INITIALIZE
from halfstep.migrate.recipes import recipe_argument

if TYPE_CHECKING:
    from halfstep.migrate.program import Initialize, Program
    from halfstep.migrate.recipes import RecipeArgument
    from halfstep.migrate.targets import Target

BY_HAND = (
    "the scaled loss is used for more than scaled_loss.backward(), which {} does not give away; "
    "write {}"
)


@dataclass(frozen=True, slots=True)
class Initialized:
    """A statement that calls `amp.initialize`.

    Attributes:
        initialize: The call.
        recipe: Its precision settings, translated.
        rest: What is left of the statement: names that it binds anew, or a return; or None.
    """

    initialize: Initialize
    recipe: RecipeArgument
    rest: str | None


@dataclass
class Backwards:
    """What the body of a `with amp.scale_loss(...)` becomes.

    Attributes:
        backwards: Its backward statements, each with what it is written as.
        reasons: What is left out.
        first: A statement that goes first, or None.
    """

    backwards: dict[cst.BaseStatement, str] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    first: str | None = None


def initialized(program: Program, statement: cst.BaseStatement) -> Initialized | None:
    """Read a statement that calls `amp.initialize`; None for all others."""
    if not (isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1):
        return None
    small = statement.body[0]
    if not isinstance(small, cst.Assign | cst.Return | cst.Expr):
        return None
    call = small.value
    if not isinstance(call, cst.Call) or program.imports.qualified(call.func) != INITIALIZE:
        return None
    given = next(each for each in program.initializes if each.call is call)
    models = argument(call, "models", 0)
    values = [] if models is None else [code(models)]
    if given.optimizers:
        values.append(given.optimizer_text)
    rest = None
    if isinstance(small, cst.Return):
        rest = f"return {', '.join(values)}"
    elif isinstance(small, cst.Assign):
        target = code(small.targets[0].target)
        if _bare(target) != _bare(", ".join(values)):
            rest = f"{target} = {', '.join(values)}"
    return Initialized(given, recipe_argument(call), rest)


def _bare(text: str) -> str:
    return text.translate(str.maketrans("", "", "()[] \n"))


def backward_statements(program: Program, target: Target, statement: cst.With) -> Backwards | str:
    """Translate the body of `with amp.scale_loss(...) as scaled_loss:`.

    Returns:
        The translation, or the reason why there is none.
    """
    item = statement.items[0]
    if len(statement.items) > 1 or item.asname is None or not isinstance(item.item, cst.Call):
        return "several contexts in one `with`; write one amp.scale_loss to a `with`"
    call, name = item.item, code(item.asname.name)
    loss = argument(call, "loss", 0)
    if loss is None:
        return "amp.scale_loss without a loss"
    found = Backwards()
    optimizers = _optimizers(program, call)
    loss_id = _loss_id(program, call)
    apart = loss_id is not None and target.zeroes_itself
    if apart and ".grad" in code(statement.body):
        found.reasons.append(
            f"loss_id={loss_id} is left out: the engine keeps gradients with a scale of their own "
            "apart, where the code below would not find them"
        )
        loss_id = None
    changed = False
    for inner in statements(statement.body):
        backward = _backward_of(inner, name)
        if backward is not None:
            options = _options(backward, found, plain=not target.zeroes_itself)
            text = name if changed else code(loss)
            found.backwards[inner] = target.backward_text(text, options, optimizers, loss_id)
        elif name in assigned_names(inner) and f"{name}." not in code(inner):
            changed = True  # by a factor, which scaled and true losses have alike
        elif name in used_names(inner):
            return BY_HAND.format(target.object, target.backward_text(code(loss), [], "", None))
    if not found.backwards:
        return BY_HAND.format(target.object, target.backward_text(code(loss), [], "", None))
    found.first = f"{name} = {code(loss)}" if changed else None
    return found


def _optimizers(program: Program, call: cst.Call) -> str:
    """Return the optimizers whose parameters a loss reaches, or "" for all."""
    given = argument(call, "optimizers", 1)
    whole = {initialize.optimizer_text for initialize in program.initializes}
    if given is None or not program.several_optimizers or code(given) in whole:
        return ""
    return code(given) if isinstance(given, cst.List) else f"[{code(given)}]"


def _loss_id(program: Program, call: cst.Call) -> str | None:
    given = argument(call, "loss_id", 2)
    several = any(recipe_argument(each.call).losses != "1" for each in program.initializes)
    return code(given) if given is not None and several else None


def _backward_of(statement: cst.BaseStatement, name: str) -> cst.Call | None:
    """Return the call of the statement `name.backward(...)`."""
    if not (isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1):
        return None
    small = statement.body[0]
    if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
        return small.value if dotted(small.value.func) == f"{name}.backward" else None
    return None


def _options(call: cst.Call, found: Backwards, *, plain: bool) -> list[str]:
    """Return the arguments of a backward that can stay; all of them for a `plain` one."""
    if plain:
        return [code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in call.args]
    options = []
    for arg in call.args:
        name = arg.keyword.value if arg.keyword else ""
        if name == "retain_graph":
            options.append(f"retain_graph={code(arg.value)}")
        elif name != "create_graph" or code(arg.value) != "False":
            found.reasons.append(
                f"{code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT))} is left out; "
                "gradients that can be differentiated again come from engine.grad(...) or "
                "torch.autograd.grad"
            )
    return options


def is_native(program: Program, statement: cst.BaseStatement) -> bool:
    """Tell whether a statement is what a program does without amp: backward, clip, step."""
    if isinstance(statement, cst.If):
        suites = (
            [statement.body] if statement.orelse is None else [statement.body, statement.orelse]
        )
        inner = [each for suite in suites for each in _statements_of(suite)]
        return all(is_native(program, each) for each in inner)
    if not (isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1):
        return False
    small = statement.body[0]
    if isinstance(small, cst.Pass):
        return True
    if not isinstance(small, cst.Expr | cst.Assign) or not isinstance(small.value, cst.Call):
        return False
    last = code(small.value.func).rpartition(".")[2]
    amp = any(program.imports.qualified(call.func) is not None for call in calls(statement))
    methods = {"backward", "step", "zero_grad"} if isinstance(small, cst.Expr) else set()
    measures = isinstance(small, cst.Assign) and "norm" in last
    return not amp and (measures or last in CLIPS.keys() | methods)


def _statements_of(part: cst.BaseSuite | cst.If | cst.Else) -> list[cst.BaseStatement]:
    if isinstance(part, cst.If):
        return [part]
    return statements(part.body if isinstance(part, cst.Else) else part)


def native_backward(statement: cst.BaseStatement) -> str | None:
    """Return the loss of the statement `loss.backward()`, else None."""
    if not (isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1):
        return None
    small = statement.body[0]
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
        return None
    function = small.value.func
    if not isinstance(function, cst.Attribute) or function.attr.value != "backward":
        return None
    return None if small.value.args else code(function.value)
