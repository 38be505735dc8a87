"""Where a format matters: fp16 outputs used behind a forward pass, fp16 inputs, a refused loss.

Apex's O1 changed torch's functions everywhere, and O2 the parameters. Autocast ends with its block,
and to torch.amp parameters are fp32: what relied on the rest is put under autocast, or noted.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.names import assigned, calls, dotted, last_name, paths
from halfstep.migrate.source import inner, suites
from halfstep.migrate.targets import TorchTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.migrate.program import Program
    from halfstep.migrate.render import Edits
    from halfstep.migrate.targets import EngineTarget
    from halfstep.migrate.understanding import Understanding

HALF_INPUT = (
    "fp16 input outside of autocast, where the parameters are in fp32: leave the cast out, or put "
    "what it is for under autocast"
)
REFUSED = "torch.autocast refuses this loss on a GPU, as O1 did; use the one that takes logits"
_ONE_FORMAT = {
    *("mm", "matmul", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "mv", "einsum", "linear"),
    *("bilinear", "conv1d", "conv2d", "conv3d", "cdist", "pdist", "tensordot", "inner", "dot"),
}
"""Functions that refuse tensors of different formats, or fp16 ones."""
_HALF = {"half", "float16", "HalfTensor"}


def used_behind(program: Program, covered: set[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements behind a forward pass that feed its outputs to what minds their format.

    Args:
        program: The facts.
        covered: All that stands under autocast.
    """
    source = program.source
    made: dict[ast.AST, dict[str, int]] = {}
    for each in covered:
        if isinstance(each, ast.stmt) and not suites(each):
            home: ast.AST = source.function(each) or source.tree
            for name in assigned(each) - program.models:
                made.setdefault(home, {})[name] = each.lineno
    for home, names in made.items():
        for each in inner(home):
            if not isinstance(each, ast.stmt) or suites(each) or each in covered:
                continue
            own = source.function(each) or source.tree
            outputs = {name for name, line in names.items() if line < each.lineno}
            if own is home and _mixes(program, each, outputs):
                yield each


def _mixes(program: Program, statement: ast.stmt, outputs: set[str]) -> bool:
    """Tell whether a statement multiplies an output, or gives it to a part of a model."""
    for node in inner(statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            if paths(node) & outputs:
                return True
        elif isinstance(node, ast.Call):
            path = dotted(node.func) or ""
            part = any(path.startswith(f"{model}.") for model in program.models)
            given = set().union(*map(paths, [*node.args, *node.keywords])) & outputs
            multiplies = last_name(node.func) in _ONE_FORMAT
            if (given and part) or (multiplies and paths(node) & outputs):
                return True
    return False


def note_formats(about: Understanding, target: EngineTarget | TorchTarget, edits: Edits) -> None:
    """Note fp16 inputs outside of autocast, and losses that autocast refuses."""
    program = about.program
    levels = {about.recipes[each.call].level for each in about.trained}
    to_torch = isinstance(target, TorchTarget)
    if levels <= ({"O0"} if to_torch else {"O0", "O2", "O3", None}):
        return
    covered = set(about.forwards.covered())
    for call in calls(program.source.tree):
        statement = program.source.statement(call)
        if statement in about.branches.dead:
            continue
        if statement not in covered and _is_half(program, call):
            edits.notes[statement].append(HALF_INPUT)
        if to_torch and levels != {"O1"} and last_name(call.func) in _REFUSED:
            edits.notes[statement].append(REFUSED)


_REFUSED = {"BCELoss", "binary_cross_entropy"}


def _is_half(program: Program, call: ast.Call) -> bool:
    """Tell whether a call makes an fp16 tensor of another: not an fp16 model."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = program.source.code(call.func.value)
    named = call.func.attr == "half" and not call.args
    given = [*call.args, *(each.value for each in call.keywords)]
    cast = call.func.attr in {"to", "type"} and any(last_name(each) in _HALF for each in given)
    return (named or cast) and owner not in program.models and not _is_module(owner)


def _is_module(owner: str) -> bool:
    return any(part in owner.lower() for part in ("model", "net", "ema", "teacher", "module"))
