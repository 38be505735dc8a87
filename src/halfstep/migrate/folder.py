"""The Python files on disk: those that a user names, and those of the same project beside them."""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING

from halfstep.errors import UserError
from halfstep.migrate.program.source import parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_ABOVE = 3
"""How many folders above a file are searched for files that import it, or that it imports."""


def read(paths: Iterable[Path]) -> dict[Path, str]:
    """Return the texts of files and of all Python files in folders.

    Raises:
        UserError: If a path does not exist or cannot be read, is not UTF-8, or contains no Python
            file.
    """
    found: dict[Path, str] = {}
    for path in paths:
        files = sorted(_python_files(path)) if path.is_dir() else [path]
        if not files:
            raise UserError(f"{path} contains no Python file; write a folder that contains some")
        found |= {file: text_of(file) for file in files}
    return found


def text_of(path: Path) -> str:
    """Return the text of a file.

    Raises:
        UserError: If the file cannot be read, or is not UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"{str(path)!r} cannot be read: {reason}; write the path of a Python program"
        ) from error


def beside(texts: dict[Path, str]) -> dict[Path, str]:
    """Return the texts of files that the given files import, or that may import them."""
    found: dict[Path, str] = {}
    near = {each for path in texts for folder in _folders(path) for each in folder.glob("*.py")}
    new = [*texts.items(), *((each, _text_or_none(each)) for each in sorted(near))]
    while new:
        path, text = new.pop()
        if text is None or path in found:
            continue
        found[path] = text
        new += [
            (each, _text_or_none(each))
            for each in _imported(path, text)
            if each not in found and each not in texts
        ]
    return {path: text for path, text in found.items() if path not in texts}


def _python_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        within = folder.__class__(root)
        folders[:] = sorted(
            each
            for each in folders
            if not each.startswith(".") and each not in {"__pycache__", "site-packages"}
            if not (within / each / "pyvenv.cfg").exists()
        )
        yield from (within / each for each in files if each.endswith(".py"))


def _folders(path: Path) -> list[Path]:
    """Return the folder of a file and those above it, up to the root of its repository."""
    found = []
    for folder in [*path.parents][: _ABOVE + 1]:
        found.append(folder)
        if (folder / ".git").exists():
            break
    return found


def _imported(path: Path, text: str) -> Iterator[Path]:
    """Yield the files that a file imports, as far as they are in a folder around it."""
    try:
        nodes = [*ast.walk(parsed(text.removeprefix("\ufeff"), str(path)))]
    except UserError:
        return
    for node in nodes:
        level = node.level if isinstance(node, ast.ImportFrom) else 0
        module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
        folders = [*path.parents][level - 1 : level] if level else _folders(path)
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            whole = f"{module}{alias.name}".strip(".").split(".")
            for folder in folders:
                for parts in (whole, whole[:-1]):
                    at = folder.joinpath(*parts)
                    choices = (at.with_name(f"{at.name}.py") if parts else at, at / "__init__.py")
                    yield from (each for each in choices if each.is_file())


def _text_or_none(path: Path) -> str | None:
    try:
        return text_of(path)
    except UserError:
        return None
