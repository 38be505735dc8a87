"""Reads statements of the user's program, and changes their arguments for a suggestion."""

from __future__ import annotations

import ast
import difflib
import io
import linecache
import re
import textwrap
from itertools import chain
from typing import TYPE_CHECKING

from halfstep.doctor.record.blocks import nodes_at

if TYPE_CHECKING:
    from halfstep.doctor.record.sites import Mark

LINES = 12
_HALF_CASTS = {
    "fp16": (r"\.half\(\)", r"\btorch\.(float16|half)\b"),
    "bf16": (r"\.bfloat16\(\)", r"\btorch\.bfloat16\b"),
}
_MODULES = {"torch", "F", "nn", "functional", "linalg", "np", "numpy", "math"}
_EPS = re.compile(r"(.*_)?eps(ilon)?\d*(_.*)?", re.IGNORECASE)


def other_lines_with_eps(mark: Mark | None, eps: float) -> tuple[int, ...]:
    """Return the other lines of a function that contain the same eps as one of its lines.

    An eps is the number itself, or a variable or attribute with a name such as `eps` or `adam_eps`.

    Args:
        mark: The line.
        eps: The value of the eps; 0 if it is a tensor.

    Returns:
        Numbers of the lines, from 1, without that of the mark.
    """
    if mark is None:
        return ()
    try:
        nodes = [*ast.walk(ast.parse("".join(linecache.getlines(mark[0]))))]
    except (SyntaxError, ValueError, RecursionError):
        return ()
    around = [
        each
        for each in nodes
        if isinstance(each, ast.FunctionDef) and each.lineno <= mark[1] <= (each.end_lineno or 0)
    ]
    if not around:
        return ()
    lines: dict[str, set[int]] = {}
    for each in chain.from_iterable(map(ast.walk, around[-1].body)):
        name = each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "")
        is_number = eps and isinstance(each, ast.Constant) and each.value == eps
        if is_number or _EPS.fullmatch(name):
            assert isinstance(each, ast.expr)
            lines.setdefault(ast.unparse(each), set()).add(each.lineno)
    same = [numbers for numbers in lines.values() if mark[1] in numbers]
    return tuple(sorted(set().union(*same) - {mark[1]}))


def statement(mark: Mark | None) -> str:
    """Return the statement that a line belongs to, without indentation; "" if unknown.

    If the statement has a body or more than a dozen lines, return only the line.
    """
    if mark is None:
        return ""
    lines = linecache.getlines(mark[0])
    first = last = mark[1]
    for each in nodes_at(mark[0], mark[1]):
        if isinstance(each, ast.stmt) and not hasattr(each, "body"):
            end = each.end_lineno or each.lineno
            if end < each.lineno + LINES:
                first, last = each.lineno, end
    return textwrap.dedent("".join(lines[first - 1 : last])).strip()


def only_line_with(pattern: str, mark: Mark | None) -> Mark | None:
    """Return the only line of a line's file in which a pattern occurs; None for none or several."""
    lines = linecache.getlines(mark[0]) if mark else []
    numbers = [number for number, line in enumerate(lines, 1) if re.search(pattern, line)]
    return (mark[0], numbers[0], "") if mark and len(numbers) == 1 else None


def with_argument(
    text: str, function: str, name: str, value: str, *, position: int | None = None
) -> str | None:
    """Return a statement in which the call of a function has the given argument.

    Args:
        text: The statement.
        function: The last part of the function's name.
        name: Name of the argument.
        value: Value of the argument, as source code.
        position: Index of the argument among positional arguments, from 0; None if it is given by
            name only.

    Returns:
        The changed statement; None if the statement does not contain exactly one such call, or if
        the call has no arguments or hides some of them in `*args` or `**kwargs`.
    """
    call = _only_call(text, function)
    if call is None:
        return None
    given = [*call.args, *[each.value for each in call.keywords]]
    hidden = any(isinstance(each, ast.Starred) for each in call.args) or any(
        each.arg is None for each in call.keywords
    )
    known = next((each.value for each in call.keywords if each.arg == name), None)
    if known is None and position is not None and len(call.args) > position:
        known = call.args[position]
    if hidden or not given:
        return None
    if known is not None:
        return replaced(text, known, value)
    last = max(given, key=lambda each: (each.end_lineno or 0, each.end_col_offset or 0))
    return replaced(text, last, f"{ast.get_source_segment(text, last)}, {name}={value}")


def with_changed_argument(text: str, function: str, name: str, changed: str) -> str | None:
    """Return a statement in which an argument that is given by name has another value.

    Args:
        text: The statement.
        function: The last part of the function's name.
        name: Name of the argument.
        changed: Its value, as source code with "{}" for the value so far.

    Returns:
        The changed statement; None unless it contains exactly one such call with this argument.
    """
    call = _only_call(text, function)
    node = next((each.value for each in call.keywords if each.arg == name), None) if call else None
    if node is None:
        return None
    return replaced(text, node, changed.format(ast.get_source_segment(text, node)))


def with_called(text: str, function: str, method: str) -> str | None:
    """Return a statement in which a method is called on the result of a function.

    Args:
        text: The statement.
        function: The last part of the function's name.
        method: The call of the method, such as "train(mode)".

    Returns:
        The changed statement; None unless it contains exactly one such call of the function.
    """
    call = _only_call(text, function)
    if call is None:
        return None
    return replaced(text, call, f"{ast.get_source_segment(text, call)}.{method}")


def with_positional(text: str, function: str, position: int, value: str) -> str | None:
    """Return a statement in which a positional argument of a function has another value.

    Args:
        text: The statement.
        function: The last part of the function's name.
        position: Index of the argument, from 0.
        value: Its value, as source code.

    Returns:
        The changed statement; None unless it contains exactly one such call with this argument.
    """
    call = _only_call(text, function)
    if call is None or len(call.args) <= position or isinstance(call.args[position], ast.Starred):
        return None
    return replaced(text, call.args[position], value)


def with_converted_argument(text: str, function: str, conversion: str) -> str | None:
    """Return a statement in which the first argument of a function is converted first.

    Args:
        text: The statement.
        function: The last part of the function's name; it may be a method of its argument. The
            function "pow" may also be written as `**`.
        conversion: Calls of methods that convert the argument, such as ".float()".

    Returns:
        The changed statement; None if the statement does not contain exactly one such call.
    """
    if function == "pow":
        return _with_converted_base(text, conversion)
    call = _only_call(text, function)
    if call is None:
        return None
    given = None
    if (tensor := _receiver(call)) and call.args and all(map(_is_literal, call.args)):
        given = tensor  # The arguments are options, as in x.norm(2).
    elif call.args or call.keywords:
        known = {each.arg: each.value for each in call.keywords}
        given = call.args[0] if call.args else known.get("input")
        if len(call.args) + len(known) > 1:
            return None  # Such as `out=`, which has a format of its own.
    elif isinstance(call.func, ast.Attribute):
        given = call.func.value
    source = None if given is None else ast.get_source_segment(text, given)
    if given is None or source is None or isinstance(given, ast.Starred):
        return None
    return _converted(text, given, source, conversion)


def _with_converted_base(text: str, conversion: str) -> str | None:
    """Return a statement in which the base of its only power is converted first."""
    bases = [
        each.left
        for each in _nodes_in(text)
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Pow)
    ]
    for call in _calls_in(text):
        if _calls(call, "pow"):
            tensor = _receiver(call)
            bases += call.args[:1] if tensor is None else [tensor]
    source = ast.get_source_segment(text, bases[0]) if len(bases) == 1 else None
    if source is None or _is_literal(bases[0]):
        return None
    return _converted(text, bases[0], source, conversion)


def _receiver(call: ast.Call) -> ast.expr | None:
    """Return the object whose method is called; None for a call of a function."""
    given = call.func.value if isinstance(call.func, ast.Attribute) else None
    return None if isinstance(given, ast.Name) and given.id in _MODULES else given


def _is_literal(node: ast.expr) -> bool:
    """Return whether an expression is a number, or a tuple or list of numbers."""
    if isinstance(node, ast.Tuple | ast.List):
        return all(map(_is_literal, node.elts))
    return isinstance(node.operand if isinstance(node, ast.UnaryOp) else node, ast.Constant)


def with_converted_receiver(text: str, method: str, conversion: str) -> str | None:
    """Return a statement in which the tensor whose method is called is converted first.

    Args:
        text: The statement.
        method: The method's name; it may have arguments.
        conversion: Calls of methods that convert the tensor, such as ".float()".

    Returns:
        The changed statement; None if it does not contain exactly one call of this name, or if the
        call is one of a function of a module.
    """
    call = _only_call(text, method)
    given = None if call is None else _receiver(call)
    source = None if given is None else ast.get_source_segment(text, given)
    if given is None or source is None:
        return None
    return _converted(text, given, source, conversion)


def with_converted_divisor(text: str, conversion: str) -> str | None:
    """Return a statement in which the divisor of its only division is converted first.

    Args:
        text: The statement.
        conversion: Calls of methods that convert the divisor.
    """
    divisions = [
        each
        for each in _nodes_in(text)
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)
    ]
    if len(divisions) != 1:
        return None
    divisor = divisions[0].right
    source = ast.get_source_segment(text, divisor)
    is_number = isinstance(divisor, ast.Constant) or (
        isinstance(divisor, ast.Call) and isinstance(divisor.func, ast.Name)  # len(values)
    )
    if source is None or is_number:
        return None
    return _converted(text, divisor, source, conversion)


def scaled_before_product(text: str) -> str | None:
    """Return a statement that scales the left factor of its only matrix product, not the result.

    Args:
        text: The statement, such as "scores = q @ k.T / math.sqrt(d)".

    Returns:
        The changed statement, such as "scores = (q / math.sqrt(d)) @ k.T"; None without one.
    """
    products = [
        each
        for each in _nodes_in(text)
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult)
    ]
    scalings = [
        each
        for each in _nodes_in(text)
        if isinstance(each, ast.BinOp)
        and isinstance(each.op, ast.Mult | ast.Div)
        and isinstance(each.left, ast.BinOp)
        and isinstance(each.left.op, ast.MatMult)
    ]
    if len(products) != 1 or len(scalings) != 1:
        return None
    (scaling,) = scalings
    product = scaling.left
    assert isinstance(product, ast.BinOp)
    left, right, by = (
        ast.get_source_segment(text, each) for each in (product.left, product.right, scaling.right)
    )
    sign = "*" if isinstance(scaling.op, ast.Mult) else "/"
    return replaced(text, scaling, f"({left} {sign} {by}) @ {right}")


def argument(text: str, function: str | None, given: int, at: int | str) -> str:
    """Return the source code of an argument that is a variable, an attribute or an element.

    Args:
        text: A statement.
        function: The last part of the function's name; None for a call of a module, whose name in
            the program is unknown.
        given: Number of positional arguments of the call.
        at: Index or name of the argument.

    Returns:
        The source code; "" if the argument is another expression, or if the statement does not
        contain exactly one such call.
    """
    calls = _calls_in(text)
    if function is None:
        found = [
            each
            for each in calls
            if len(each.args) == given
            and (isinstance(at, int) or any(keyword.arg == at for keyword in each.keywords))
        ]
    else:
        found = [each for each in calls if _calls(each, function)]
    if len(found) != 1 or any(isinstance(each, ast.Starred) for each in found[0].args):
        return ""
    known: dict[int | str | None, ast.expr] = dict(enumerate(found[0].args))
    known |= {each.arg: each.value for each in found[0].keywords}
    node = known.get(at)
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else ""


def operand(text: str, at: int) -> str:
    """Return the source code of an operand of the only subtraction in a statement.

    Args:
        text: The statement.
        at: 0 for the left operand, 1 for the right one.

    Returns:
        The source code; "" if the operand is no variable, or if there is no such subtraction.
    """
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return ""
    found = [each for each in nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub)]
    if len(found) != 1:
        return ""
    node = (found[0].left, found[0].right)[at]
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) else ""


def is_only_call(text: str) -> bool:
    """Return whether a line contains a call and nothing else."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    return len(body) == 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Call)


def in_fp32(text: str, format_: str) -> str | None:
    """Return a statement that casts to a half format, changed so that it casts to fp32.

    Args:
        text: The statement.
        format_: The half format, "fp16" or "bf16".

    Returns:
        The changed statement; None if the statement does not name the format.
    """
    method, dtype = _HALF_CASTS[format_]
    changed = re.sub(dtype, "torch.float32", re.sub(method, ".float()", text))
    return changed if changed != text else None


def difference(before: str, after: str) -> tuple[str, ...]:
    """Return the difference of two texts, as lines: "- old", "+ new", "  unchanged"."""
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return tuple(each for each in lines if not each.startswith("?"))


def _only_call(text: str, function: str) -> ast.Call | None:
    """Return the call of a function in a statement; None unless there is exactly one."""
    found = [each for each in _calls_in(text) if _calls(each, function)]
    return found[0] if len(found) == 1 else None


def _calls_in(text: str) -> list[ast.Call]:
    """Return the calls in a statement; none if it cannot be parsed."""
    return [each for each in _nodes_in(text) if isinstance(each, ast.Call)]


def _nodes_in(text: str) -> list[ast.AST]:
    """Return the nodes of a statement; none if it cannot be parsed."""
    try:
        return [*ast.walk(ast.parse(text))]
    except (SyntaxError, ValueError, RecursionError):
        return []


def _converted(text: str, node: ast.expr, source: str, conversion: str) -> str:
    """Return a text in which methods convert the value of a node."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
        return replaced(text, node, f"{source}{conversion}")
    converted = f"({source}){conversion}"
    # An expression that has brackets already, other than those of a call, needs no second ones.
    twice = rf"(?<![\w)\]])\({re.escape(converted)}\)"
    return re.sub(twice, lambda _: converted, replaced(text, node, converted), count=1)


def _calls(node: ast.Call, function: str) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
    return name == function or (isinstance(name, ast.Name) and name.id == function)


def replaced(text: str, node: ast.expr, by: str) -> str:
    """Return a text in which the source code of a node is replaced."""
    # Only "\n" ends a line for `ast`; `splitlines` would split at other characters, too.
    lines = [each.encode() for each in io.StringIO(text, newline="\n")]
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before = b"".join([*lines[:first], lines[first][: node.col_offset]])
    after = b"".join([lines[last][node.end_col_offset :], *lines[last + 1 :]])
    return (before + by.encode() + after).decode()
