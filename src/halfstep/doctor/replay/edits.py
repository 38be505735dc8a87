"""Runs the program's own functions with changed lines, to try a change before it is suggested.

The changed file is compiled, and each function that contains a changed line gets its new code while
the block runs. The file itself is not touched.
"""

from __future__ import annotations

import ast
import gc
import linecache
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from halfstep.doctor.record.attempts import Edit


def edited(file: str, edits: Iterable[Edit]) -> str:
    """Return the text of a file with changed lines; a line may become none or several."""
    lines = [*linecache.getlines(file)]
    for each in edits:
        if each.file == file and 0 < each.line <= len(lines):
            old = lines[each.line - 1]
            indent = old[: len(old) - len(old.lstrip())]
            lines[each.line - 1] = "".join(f"{indent}{new}\n" for new in each.new)
    return "".join(lines)


@contextmanager
def in_effect(edits: Sequence[Edit]) -> Iterator[None]:
    """Let the functions that contain the lines run with the changed lines.

    Raises:
        ValueError: If a changed file is not valid, or if a changed function needs other variables
            of the functions around it.
    """
    old: list[tuple[FunctionType, CodeType]] = []
    try:
        for file in {each.file for each in edits}:
            mine = [each for each in edits if each.file == file]
            new = _new_code(file, mine)
            for function in _functions_with(file, {each.line for each in mine}):
                code = new.get(_key(function.__code__))
                if code is not None:
                    old.append((function, function.__code__))
                    function.__code__ = code
        yield
    finally:
        for function, code in reversed(old):
            function.__code__ = code


def _new_code(file: str, edits: list[Edit]) -> dict[tuple[str, int], CodeType]:
    """Return the code of each function in a changed file, by the key of its code before."""
    try:
        before, after = (
            [*_inside(compile(text, file, "exec", dont_inherit=True))]
            for text in ("".join(linecache.getlines(file)), edited(file, edits))
        )
    except SyntaxError as error:
        raise ValueError(f"the changed file is not valid: {error}") from error
    return {_key(old): new for old, new in zip(before, after, strict=True)}


def _inside(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inside(each)


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _functions_with(file: str, lines: set[int]) -> list[FunctionType]:
    """Return the functions of a file that contain one of the lines."""
    return [
        each
        for each in gc.get_objects()
        if type(each) is FunctionType
        and each.__code__.co_filename == file
        and any(_covers(each.__code__, line) for line in lines)
    ]


def _covers(code: CodeType, line: int) -> bool:
    numbers = [each for one in (code, *_inside(code)) for *_, each in one.co_lines() if each]
    return bool(numbers) and min(numbers) <= line <= max(numbers)


def statement_at(file: str, edits: Sequence[Edit], line: int) -> ast.stmt | None:
    """Return the simple statement that contains a line, in the changed file; None without one."""
    try:
        tree = ast.parse(edited(file, edits))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.stmt)
        and not hasattr(each, "body")
        and each.lineno <= line <= (each.end_lineno or each.lineno)
    ]
    return found[-1] if found else None


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a statement reads."""
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
    }


def value_of(node: ast.stmt, known: dict[str, Any]) -> Any:
    """Return the value that a statement assigns, computed with other values of its names."""
    value = getattr(node, "value", None)
    assert isinstance(value, ast.expr)
    return eval(compile(ast.Expression(value), "<changed>", "eval"), known)  # noqa: S307  # its own
