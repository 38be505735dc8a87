"""Uses of the fp16 outputs of a forward pass after its autocast block.

Apex's O1 patched torch's functions in the whole program. Autocast ends with its block, and after it
torch refuses to multiply an fp16 output by an fp32 tensor.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import assigned, dotted, last_name, paths
from halfstep.migrate.program.source import inner, suites

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halfstep.migrate.program.program import Program

_ONE_FORMAT = {
    *("mm", "matmul", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "mv", "einsum", "linear"),
    *("bilinear", "conv1d", "conv2d", "conv3d", "cdist", "pdist", "tensordot", "inner", "dot"),
}
"""Functions that refuse tensors of different formats, or fp16 tensors."""


def used_behind(program: Program, covered: set[ast.AST]) -> Iterator[ast.stmt]:
    """Yield statements after a forward pass that fail if its outputs are fp16.

    Args:
        program: The parsed program.
        covered: All nodes under autocast.
    """
    source = program.source
    made: dict[ast.AST, dict[str, int]] = {}
    for each in covered:
        if isinstance(each, ast.stmt) and not suites(each):
            home: ast.AST = source.scope(each)
            for name in assigned(each) - program.models:
                made.setdefault(home, {})[name] = each.lineno
    for home, names in made.items():
        for each in inner(home):
            if not isinstance(each, ast.stmt) or suites(each) or each in covered:
                continue
            own = source.scope(each)
            outputs = {name for name, line in names.items() if line < each.lineno}
            if own is home and _mixes(program, each, outputs):
                yield each


def _mixes(program: Program, statement: ast.stmt, outputs: set[str]) -> bool:
    """Tell whether a statement multiplies an output, or passes it to a part of a model."""
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
