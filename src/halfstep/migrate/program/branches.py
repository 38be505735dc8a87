"""Branches of a program that exist only for amp: `if fp16: ... else: loss.backward()`.

An engine or a scaler can be switched off, so one piece of code serves both sides. If the two sides
differ only in their use of amp, the side without amp is removed. If they differ in more, both sides
are rewritten, provided that the backwards of the side without amp are plain `loss.backward()`.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls, dotted, last_name
from halfstep.migrate.program.program import ScaledLoss
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halfstep.migrate.program.program import Program

CLIPS = {"clip_grad_norm_": "clip_norm", "clip_grad_norm": "clip_norm"}
CLIPS |= {"clip_grad_value_": "clip_value"}
OTHERWISE = "the branch without amp differs from the branch with amp in more than the calls of amp"


@dataclass
class Branches:
    """The branches of a program that choose between amp and plain fp32.

    Attributes:
        amp: Maps each `if` that is removed to its side with amp, which replaces the whole `if`.
        dead: All nodes on the removed sides.
        only_with_amp: Maps each statement that clips on the side with amp only to the source of the
            test under which that side runs.
        apart: The `if`s whose sides differ and are both rewritten.
        without_amp: All nodes on the sides without amp of the `if`s in `apart`.
        different: The `if`s whose sides differ in a way that migrate cannot translate.
    """

    amp: dict[ast.If, list[ast.stmt]] = field(default_factory=dict)
    dead: set[ast.AST] = field(default_factory=set)
    only_with_amp: dict[ast.stmt, str] = field(default_factory=dict)
    apart: list[ast.If] = field(default_factory=list)
    without_amp: set[ast.AST] = field(default_factory=set)
    different: list[ast.If] = field(default_factory=list)

    @property
    def switches(self) -> list[ast.If]:
        """The branches that choose between amp and plain fp32."""
        return [*self.amp, *self.apart]


def read_branches(program: Program) -> Branches:
    """Find the branches that exist only for amp.

    If both sides are rewritten, the losses on the side without amp are added to `program.losses`.
    """
    found = Branches()
    for node in inner(program.source.tree):
        if isinstance(node, ast.If) and node.orelse and node not in found.dead:
            _compare(program, node, found)
    return found


def _compare(program: Program, node: ast.If, found: Branches) -> None:
    sides = [node.body, node.orelse]
    with_amp = [any(_scales_or_clips(program, each) for each in side) for side in sides]
    if with_amp[0] == with_amp[1]:
        return
    amp, other = sides if with_amp[0] else sides[::-1]
    if not any(_is_native(each) for each in other):
        return
    if any(program.uses_amp(each) for each in other):
        found.different.append(node)
        return
    first, second = _normal(program, amp), _normal(program, other)
    differs = first != second
    if differs:
        more = [text for text in first if text not in second]
        clips = [text for text in more if _CLIP.search(text)]
        rest = [text for text in more if text not in clips]
        same = [text for text in first if text not in more] == second
        if not same or not all(_only_binds(text) for text in rest):
            _keep_apart(program, node, other, found)
            return
        test = program.source.code(node.test)
        for statement in amp:
            if any(text in clips for text in _normal(program, [statement])):
                found.only_with_amp[statement] = test if with_amp[0] else f"not ({test})"
    found.amp[node] = amp
    found.dead.update(each for statement in other for each in inner(statement))


def _keep_apart(program: Program, node: ast.If, other: list[ast.stmt], found: Branches) -> None:
    """Mark both sides for rewriting: where amp is off, the engine or scaler does nothing."""
    inside = [call for each in other for call in calls(each)]
    backwards = [call for call in inside if last_name(call.func) == "backward"]
    plain = all(_is_plain_backward(program, call) for call in backwards)
    scaler = any(last_name(call.func) in {"scale", "unscale_"} for call in inside)
    if not plain or scaler or program.several_optimizers or not program.initializes:
        found.different.append(node)
        return
    found.apart.append(node)
    found.without_amp.update(each for statement in other for each in inner(statement))
    for call in backwards:
        assert isinstance(call.func, ast.Attribute)
        statement = program.source.parent[call]
        assert isinstance(statement, ast.Expr)
        optimizers = program.initializes[0].optimizers
        program.losses.append(ScaledLoss(statement, call, "", call.func.value, optimizers))


def _is_plain_backward(program: Program, call: ast.Call) -> bool:
    """Tell whether a call is a statement `x.backward()`, and `x` is not an optimizer or `self`."""
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(program.source.parent[call], ast.Expr)
        and not call.args
        and dotted(call.func.value) not in {*program.optimizers, "self"}
    )


def _only_binds(text: str) -> bool:
    """Tell whether a statement only assigns a value to a name, such as `bad = isnan(norm)`."""
    (statement,) = ast.parse(text).body
    return isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)


_CLIP = re.compile(r"\bclip_grad_(norm_?|value_)\(")


def _scales_or_clips(program: Program, statement: ast.stmt) -> bool:
    return bool(program.losses_in(statement) or program.master_params(statement))


def _is_native(statement: ast.stmt) -> bool:
    return any(last_name(call.func) in {"backward", *CLIPS} for call in calls(statement))


def _normal(program: Program, body: Sequence[ast.stmt]) -> list[str]:
    """Return the source of each statement, with the calls of amp replaced by plain PyTorch."""
    found: list[str] = []
    for statement in body:
        if imports_apex(program, statement):
            continue
        loss = program.loss_of(statement)
        if loss is None or isinstance(loss.statement, ast.Expr):
            found.append(_plain(statement))
            continue
        plain = map(_plain, loss.statement.body)
        found += [_with_loss(text, loss.name, loss.loss) for text in plain]
    return [text for text in found if text != "pass"]


def imports_apex(program: Program, statement: ast.stmt) -> bool:
    """Tell whether a statement only imports Apex, perhaps in a `try`."""
    if isinstance(statement, ast.Try):
        return all(imports_apex(program, each) for each in statement.body)
    if isinstance(statement, ast.Import | ast.ImportFrom):
        names = {each.asname or each.name.partition(".")[0] for each in statement.names}
        return names <= program.imports.of(statement).bound.keys()
    return False


def _plain(statement: ast.stmt) -> str:
    return ast.unparse(_Plain().visit(ast.parse(ast.unparse(statement))))


def _with_loss(text: str, scaled: str, loss: ast.expr) -> str:
    """Return the source of a statement, with the scaled loss replaced by the loss."""
    written = ast.unparse(loss)
    if not isinstance(loss, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        written = f"({written})"
    return re.sub(rf"\b{scaled}\b", lambda _: written, text)


class _Plain(ast.NodeTransformer):
    """Replaces amp's calls by plain ones, and each list of parameters by the name `PARAMETERS`."""

    def visit_With(self, node: ast.With) -> ast.AST:
        """Replace a `with amp.scale_loss(...)` of one statement by a plain backward."""
        self.generic_visit(node)
        item = node.items[0]
        if (
            isinstance(item.context_expr, ast.Call)
            and last_name(item.context_expr.func) == "scale_loss"
            and isinstance(item.optional_vars, ast.Name)
            and len(node.body) == 1
            and item.context_expr.args
        ):
            body, loss = ast.unparse(node.body[0]), item.context_expr.args[0]
            return ast.parse(_with_loss(body, item.optional_vars.id, loss)).body[0]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace `model.parameters()` and `amp.master_params(optimizer)` by one name."""
        self.generic_visit(node)
        if last_name(node.func) in {"parameters", "master_params"}:
            return ast.Name("PARAMETERS", ast.Load())
        return node
