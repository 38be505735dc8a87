"""The functions of amp that only cast: each has a counterpart that needs no engine or scaler.

They are `disable_casts`, the decorators, `register_half_function` and its relatives, and `init`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from halfstep.migrate.program.names import argument, calls, dotted, fresh, used_names
from halfstep.migrate.program.program import DISABLE_CASTS, INIT
from halfstep.migrate.program.source import inner

if TYPE_CHECKING:
    from halfstep.migrate.program.program import Program
    from halfstep.migrate.program.render import Edits

CASTS = '''\
def cast_inputs(dtype=None):
    """Return a decorator for functions that autocast does not know.

    Where autocast is on, it casts the floating-point inputs of the function to `dtype`; without
    `dtype`, to the widest format among them.
    """

    def tensors(value):
        if isinstance(value, (list, tuple, dict)):
            parts = value.values() if isinstance(value, dict) else value
            return [one for part in parts for one in tensors(part)]
        return [value] if torch.is_tensor(value) and value.is_floating_point() else []

    def cast(value, to):
        if isinstance(value, dict):
            return {key: cast(part, to) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(cast(part, to) for part in value)
        return value.to(to) if tensors(value) and torch.is_tensor(value) else value

    def decorate(function):
        def run(*args, **kwargs):
            given = tensors([args, kwargs])
            if not given or not torch.is_autocast_enabled(given[0].device.type):
                return function(*args, **kwargs)
            widest = given[0].dtype
            for one in given:
                widest = torch.promote_types(widest, one.dtype)
            args, kwargs = cast(args, dtype or widest), cast(kwargs, dtype or widest)
            return function(*args, **kwargs)

        return functools.wraps(function)(run)

    return decorate
'''
"""Added to a file that uses one of amp's decorators."""
DECORATORS = {
    "apex.amp.half_function": "cast_inputs(torch.float16)",
    "apex.amp.float_function": "cast_inputs(torch.float32)",
    "apex.amp.promote_function": "cast_inputs()",
}
_REGISTER = {name.replace("amp.", "amp.register_"): written for name, written in DECORATORS.items()}
OLD_HANDLE = (
    "the handle that amp.init returns has no counterpart; write `model, optimizer = "
    "amp.initialize(model, optimizer)` and `with amp.scale_loss(loss, optimizer) as scaled:`, and "
    "migrate again"
)
_CAST_BY_AUTOCAST = {"einsum", "matmul", "mm", "bmm", "baddbmm", "addmm", "addbmm", "mv", "addmv"}


def device_name(program: Program) -> str:
    """Return the name of the variable with the type of the device, "cuda" or "cpu"."""
    return fresh("AMP_DEVICE", program.names)


def device_text(program: Program) -> str:
    """Return the statement that assigns it."""
    return f'{device_name(program)} = "cuda" if torch.cuda.is_available() else "cpu"'


def expression(program: Program, node: ast.AST) -> str | None:
    """Return the counterpart of an expression; None if it has none."""
    device = device_name(program)
    name = program.imports.qualified(node.func if isinstance(node, ast.Call) else node)
    if isinstance(node, ast.Call):
        return f"torch.autocast({device}, enabled=False)" if name == DISABLE_CASTS else None
    return DECORATORS.get(name or "")


def write_statements(program: Program, edits: Edits) -> list[tuple[ast.stmt, str]]:
    """Rewrite the statements that register functions or initialize the casts.

    Returns:
        The statements that cannot be rewritten, each with the reason.
    """
    reasons: list[tuple[ast.stmt, str]] = []
    device = device_name(program)
    for call in calls(program.source.tree):
        name = program.imports.qualified(call.func)
        statement = program.source.parent[call]
        if name in _REGISTER and len(call.args) == 2 and isinstance(statement, ast.Expr):
            edits.replaced[statement] = _registered(program, call, _REGISTER[name])
        elif name == INIT:
            if not _is_unused(program, statement):
                reasons.append((program.source.statement(call), OLD_HANDLE))
                continue
            enabled = argument(call, "enabled", 0)
            on = "" if enabled is None else f", enabled=bool({program.source.code(enabled)})"
            # Without its cache: autocast empties it only at the end of a block.
            assert isinstance(statement, ast.stmt)
            casting = f"torch.autocast({device}, dtype=torch.float16{on}, cache_enabled=False)"
            edits.replaced[statement] = [f"{casting}.__enter__()"]
    return reasons


def _registered(program: Program, call: ast.Call, decorator: str) -> list[str | list[ast.stmt]]:
    """Return the statement that decorates a registered function in its module."""
    module, name = call.args
    code = program.source.code
    known = isinstance(name, ast.Constant) and name.value in _CAST_BY_AUTOCAST
    if known and dotted(module) == "torch" and "float16" in decorator:
        return []
    text = name.value if isinstance(name, ast.Constant) else None
    if isinstance(text, str) and text.isidentifier():
        function = f"{code(module)}.{text}"
        return [f"{function} = {decorator}({function})"]
    place = f"{code(module)}, {code(name)}"
    return [f"setattr({place}, {decorator}(getattr({place})))"]


def _is_unused(program: Program, statement: ast.AST) -> bool:
    """Tell whether a statement is a call, or assigns it to names that are read nowhere."""
    if isinstance(statement, ast.Expr):
        return True
    if not isinstance(statement, ast.Assign):
        return False
    names = set().union(*map(used_names, statement.targets))
    return all(isinstance(each, ast.Name) for each in statement.targets) and not any(
        isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
        for node in inner(program.source.tree)
    )
