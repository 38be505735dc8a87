"""What the verification knows about a value, and what a call makes of the values it is given."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from enum import Enum

from halfstep.migrate.program.call_graph import NO_FORWARD
from halfstep.migrate.program.names import dotted, last_name
from halfstep.migrate.program.objects import WRAPPERS


class Kind(Enum):
    """What a value is made of."""

    MODEL = "a model, or an object that contains one"
    OUTPUT = "computed by a model, or from its outputs"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A call outside of autocast that may run a model: its code is in another file."""

    call: ast.Call


Value = frozenset[ast.Call | Unknown | Kind]
"""The kinds of a value, and the calls outside of autocast from whose results it is computed.

It is empty for data, settings and other values that no model has computed.
"""
NOTHING: Value = frozenset()
MODEL: Value = frozenset({Kind.MODEL})
OUTPUT: Value = frozenset({Kind.OUTPUT})

FILLING = {"append", "appendleft", "extend", "insert", "update", "add", "setdefault", "push", "put"}
"""Methods that add their arguments to an object."""
PROPERTIES = {"shape", "dtype", "device", "ndim", "requires_grad", "is_cuda", "training"}
"""Attributes that do not depend on the numbers in a tensor."""
_NUMBERS = {
    *("item", "size", "dim", "numel", "nelement", "tolist", "get_device", "data_ptr"),
    *("zeros_like", "ones_like", "rand_like", "randn_like", "empty_like", "full_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty"),
}
"""Functions with the same property, or that return Python numbers."""
_PASSING = {
    *("sum", "max", "min", "abs", "list", "tuple", "dict", "set", "zip", "enumerate", "sorted"),
    *("reversed", "iter", "next", "getattr", "vars", "pow", "divmod"),
}
"""Builtins whose result contains their arguments, or which add or compare them without torch."""
_RUNNING = {"map", "filter"}
"""Builtins that may run a model, which is then one of their arguments."""
_MOVING = {
    *("to", "cuda", "cpu", "float", "half", "double", "type", "type_as", "long", "int", "bool"),
    *("view", "view_as", "reshape", "permute", "transpose", "t", "contiguous", "unsqueeze"),
    *("squeeze", "flatten", "expand", "expand_as", "repeat", "detach", "detach_", "clone", "copy"),
    *("chunk", "split", "unbind", "narrow", "index_select", "gather", "masked_select", "select"),
    *("stack", "cat", "concat", "concatenate", "requires_grad_", "retain_grad", "numpy"),
    *("pop", "popleft", "get", "items", "keys", "values", *FILLING),
    *("new_tensor", "as_tensor", "tensor", "from_numpy", "zero_", "fill_", "register_hook"),
    *("backward", "zero_grad", "step"),
    *("clear", "remove", "state_dict", "parameters", "train", "eval"),
}
"""Methods that move, copy or convert tensors, or have no tensor as a result."""
_COPYING = {"deepcopy", "cat", "stack", *WRAPPERS}
"""Functions that return their arguments, perhaps in another object."""
_LIBRARIES = {"torch", "nn", "F", "dist", "np", "numpy", "math", "random", "os", "time", "logging"}
"""Modules without models: their functions compute with a model only if it is an argument."""


def moved(call: ast.Call, owner: Value, given: Value) -> Value | None:
    """Return the value of a call that computes nothing under autocast; None for any other call.

    Args:
        call: The call.
        owner: The value of the called object, or of the object whose method is called.
        given: The values of all arguments together.
    """
    name = last_name(call.func)
    values = owner | given
    if isinstance(call.func, ast.Name) and name in set(dir(builtins)) - _RUNNING:
        return given if name in _PASSING else NOTHING
    if name in _NUMBERS:
        return NOTHING
    method = isinstance(call.func, ast.Attribute)
    if name in _COPYING or (method and name in _MOVING):
        return values
    if constructs(call) and Kind.MODEL not in owner:
        return values
    if method and name in NO_FORWARD and Kind.MODEL in owner:
        return MODEL
    library = (dotted(call.func) or "").partition(".")[0] in _LIBRARIES
    return NOTHING if library and not values else None


def constructs(call: ast.Call) -> bool:
    """Tell whether a call creates an object of a class, by the case of its name."""
    name = last_name(call.func)
    return name[:1].isupper() and not name.isupper()


def constructs_module(call: ast.Call) -> bool:
    """Tell whether a call creates one of torch's modules, such as `nn.Linear(2, 1)`."""
    path = dotted(call.func) or ""
    return constructs(call) and path.startswith(("nn.", "torch.nn."))


def autocasts(node: ast.expr, *, otherwise: bool) -> bool:
    """Tell whether code is under autocast inside `with node:`, or under the decorator `node`.

    Args:
        node: The context manager or decorator.
        otherwise: Whether the code is under autocast without it.
    """
    if not isinstance(node, ast.Call) or last_name(node.func) != "autocast":
        return otherwise
    on = (each.value for each in node.keywords if each.arg == "enabled")
    off = any(isinstance(each, ast.Constant) and not each.value for each in on)
    return otherwise if off else True  # code that switches it off within a block means to


def counted(value: Value) -> set[ast.Call]:
    """Return the calls that must be under autocast if a value is a loss.

    Calls of unknown functions count only if no known model has computed the loss.
    """
    unknown = [] if Kind.OUTPUT in value else [each for each in value if isinstance(each, Unknown)]
    return {each for each in value if isinstance(each, ast.Call)} | {each.call for each in unknown}
