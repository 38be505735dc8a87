"""Lines of the user's program that call torch."""

from __future__ import annotations

import io
import linecache
import sys
import sysconfig
import tokenize
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from halfstep.doctor.internals import calling_frame
from halfstep.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from types import FrameType, TracebackType

_TORCH = str(Path(torch.__file__).parent)
_OPTIMIZERS = str(Path(torch.optim.__file__).parent)
_HERE = str(Path(__file__).parent.parent)  # the folder of doctor
_HALFSTEP = str(Path(_HERE).parent)
_KERNELS = str(Path(_HALFSTEP, "kernels"))  # Python kernels of ATen operators
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"]
_INSTALLED = frozenset({"site-packages", "dist-packages"})

# A line before its text is read: file, line number, function.
Mark = tuple[str, int, str]
_kinds: dict[str, int] = {}
_TRANSPARENT, _LIBRARY, _USER = range(3)


@dataclass(frozen=True, slots=True)
class Site:
    """A line of a program.

    Attributes:
        file: Path of the source file.
        line: Line number, from 1.
        function: The function that contains the line.
        text: Source text of the line, without indentation; "" if the source is not available.
    """

    file: str
    line: int
    function: str = ""
    text: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def _kind(file: str) -> int:
    kind = _kinds.get(file)
    if kind is None:
        if file.startswith((_TORCH, _HERE, _KERNELS, "<")):
            kind = _TRANSPARENT
        elif file.startswith(_HALFSTEP) or _package(file):
            kind = _LIBRARY
        elif file.startswith(_STANDARD_LIBRARY):
            kind = _TRANSPARENT
        else:
            kind = _USER
        _kinds[file] = kind
    return kind


def _package(file: str) -> str:
    """Return the installed package that a source file is a part of; "" for none."""
    path = Path(file)
    for folder in path.parents:
        name = path.relative_to(folder).parts[0].removesuffix(".py")
        if folder.name in _INSTALLED or (str(folder) in sys.path and name in _packages_in(folder)):
            return name
    return ""


@cache
def _packages_in(folder: Path) -> frozenset[str]:
    """Return the packages that `pip install --target` has put into a folder."""
    names = set()
    for each in folder.glob("*.dist-info/RECORD"):
        lines = each.read_text(encoding="utf-8", errors="replace").splitlines()
        names |= {line.split("/")[0].split(",")[0].removesuffix(".py") for line in lines}
    return frozenset(names)


def is_of_user(file: str) -> bool:
    """Return whether a source file is the user's, and not one of an installed package."""
    return _kind(file) == _USER


def is_transparent(file: str) -> bool:
    """Return whether a source file is one of torch, of doctor or of the standard library."""
    return _kind(file) == _TRANSPARENT


def library_here() -> str:
    """Return the package that calls torch for the user's line, such as "lightning"; "" for none.

    If several packages are between them, it is the one that the user's line calls.
    """
    frame: FrameType | None = calling_frame()
    package = ""
    while frame is not None and (kind := _kind(frame.f_code.co_filename)) != _USER:
        if kind == _LIBRARY:
            package = _package(frame.f_code.co_filename) or package
        frame = frame.f_back
    return package


def is_of_doctor(file: str) -> bool:
    """Return whether a source file is one of doctor's."""
    return file.startswith(_HERE)


def calling_line() -> Mark | None:
    """Return the innermost line outside installed packages that led here.

    If every caller is installed, return the innermost line outside torch and the standard library.
    """
    frame: FrameType | None = calling_frame()
    fallback = None
    while frame is not None:  # This runs for each call into torch, so there is no generator here.
        file = frame.f_code.co_filename
        kind = _kinds.get(file)
        if kind is None:
            kind = _kind(file)
        if kind == _USER:
            return file, frame.f_lineno, frame.f_code.co_name
        if kind == _LIBRARY and fallback is None:
            fallback = file, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return fallback


def calling_lines() -> tuple[Mark, ...]:
    """Return all lines outside installed packages that led here, innermost first."""
    frame: FrameType | None = calling_frame()
    marks = []
    while frame is not None:
        file = frame.f_code.co_filename
        if (_kinds.get(file) or _kind(file)) == _USER:
            marks.append((file, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(marks)


def frame_at(mark: Mark | None) -> FrameType | None:
    """Return the innermost running frame that is at a line."""
    frame: FrameType | None = calling_frame()
    while frame is not None and mark is not None:
        if (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) == mark:
            return frame
        frame = frame.f_back
    return None


def lines_below(boundary: str, fallback: Mark | None) -> tuple[Mark | None, Mark | None]:
    """Return the line that calls an operator, possibly in a library, and the user's line.

    Args:
        boundary: The file that replays the program's calls. Its frame, and all frames outside of
            it, do not belong to the program.
        fallback: The line of the loop that is replayed, for operators that no other line calls.
    """
    computing = user = None
    frame: FrameType | None = calling_frame()
    while frame is not None and frame.f_code.co_filename != boundary:
        kind = _kind(frame.f_code.co_filename)
        if kind != _TRANSPARENT:
            mark = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            computing = computing or mark
            if kind == _USER:
                user = mark
                break
        frame = frame.f_back
    return computing or fallback, user or fallback


def raising_line(traceback: TracebackType | None) -> Mark | None:
    """Return the innermost line of the user's program in the traceback of an exception.

    If no such line is in it, return the innermost line of a library.
    """
    passed: list[tuple[int, Mark]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        kind = _kind(code.co_filename)
        if kind != _TRANSPARENT:
            passed.append((kind, (code.co_filename, traceback.tb_lineno, code.co_name)))
        traceback = traceback.tb_next
    innermost_first = [*reversed(passed)]
    users = [mark for kind, mark in innermost_first if kind == _USER]
    marks = users or [mark for _, mark in innermost_first]
    return marks[0] if marks else None


def passed_optimizer(traceback: TracebackType | None) -> bool:
    """Return whether one of torch's optimizers is in the traceback of an exception."""
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename.startswith(_OPTIMIZERS):
            return True
        traceback = traceback.tb_next
    return False


def place(module: str, line: Site | None) -> str:
    """Return a module and a line as text: "in module 2 (net.py:18)", or "at train.py:7"."""
    at = "an unknown line" if line is None else str(line)
    return f"in module {module} ({at})" if module else f"at {at}"


def site(mark: Mark | None) -> Site | None:
    """Return a line together with its source text."""
    if mark is None:
        return None
    file, line, function = mark
    return Site(file, line, function, without_comment(linecache.getline(file, line).strip()))


def without_comment(text: str) -> str:
    """Return a line of source without the comment at its end."""
    if "#" not in text:
        return text
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and token.start[1]:
                return text[: token.start[1]].rstrip()
    except (tokenize.TokenError, SyntaxError):  # a statement that continues on the next line
        pass
    return text
