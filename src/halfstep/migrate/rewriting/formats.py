"""Notes for code that fails outside of autocast or in it: fp16 inputs, and a refused loss.

Apex's O1 patched torch's functions in the whole program, and O2 cast the parameters. Autocast ends
with its block, and with torch.amp the parameters stay in fp32. Code that depended on more gets a
note.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import calls, last_name, targets
from halfstep.migrate.rewriting.targets import TorchTarget

if TYPE_CHECKING:
    from halfstep.migrate.analysis.understanding import Understanding
    from halfstep.migrate.program.program import Program
    from halfstep.migrate.program.render import Edits
    from halfstep.migrate.rewriting.targets import EngineTarget

HALF_INPUT = (
    "this input is cast to fp16 outside of autocast, but the parameters are in fp32: remove the "
    "cast, or put the code that uses the input under autocast"
)
REFUSED = "torch.autocast refuses this loss on a GPU, as O1 did; use the version that takes logits"
_HALF = {"half", "float16", "HalfTensor"}


def note_formats(about: Understanding, target: EngineTarget | TorchTarget, edits: Edits) -> None:
    """Note fp16 inputs outside of autocast, and losses that autocast refuses."""
    program = about.program
    levels = {about.recipes[each.call].level for each in about.trained}
    to_torch = isinstance(target, TorchTarget)
    if levels <= ({"O0"} if to_torch else {"O0", "O2", "O3", None}):
        return
    covered = set(about.forwards.covered())
    computed = {last_name(each.func) for each in covered if isinstance(each, ast.Call)}
    for call in calls(program.source.tree):
        statement = program.source.statement(call)
        if statement in about.branches.dead:
            continue
        if statement not in covered and _is_half(program, call):
            edits.notes[statement].append(HALF_INPUT)
        if to_torch and levels != {"O1"}:
            names = _refused(statement, call)
            if call in covered if names == {"binary_cross_entropy"} else names & computed:
                edits.notes[statement].append(REFUSED)


def _refused(statement: ast.stmt, call: ast.Call) -> set[str]:
    """Return the names under which a loss that autocast refuses is called, if a call makes one."""
    name = last_name(call.func)
    if name == "binary_cross_entropy":
        return {name}
    made = targets(statement) if name == "BCELoss" else []
    return {last_name(target) for target in made}


def _is_half(program: Program, call: ast.Call) -> bool:
    """Tell whether a call casts a tensor to fp16; a call that casts a model does not count."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = program.source.code(call.func.value)
    named = call.func.attr == "half" and not call.args
    given = [*call.args, *(each.value for each in call.keywords)]
    cast = call.func.attr in {"to", "type"} and any(last_name(each) in _HALF for each in given)
    return (named or cast) and owner not in program.models and not _is_module(owner)


def _is_module(owner: str) -> bool:
    return any(part in owner.lower() for part in ("model", "net", "ema", "teacher", "module"))
