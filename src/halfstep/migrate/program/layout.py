"""Which file of a program an import refers to, found by the paths of the files alone."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Parts = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A file that an import refers to.

    Attributes:
        name: The path of the file.
        root: The folder that has to be on Python's search path for the import; None for a relative
            import.
        module: Whether the imported name is the file itself, not a name in the file.
    """

    name: str
    root: PurePath | None
    module: bool = True


class Layout:
    """The files of a program by path.

    Args:
        names: The paths of the files.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._folders: dict[str, Parts] = {}
        self._names: dict[Parts, str] = {}
        for name in names:
            path = PurePath(name)
            self._folders[name] = path.parent.parts
            whole = path.parent if path.stem == "__init__" else path.with_suffix("")
            self._names[whole.parts] = name

    def imports(
        self, name: str, node: ast.Import | ast.ImportFrom
    ) -> Iterator[tuple[ast.alias, Found]]:
        """Yield each alias of an import in the file `name` that refers to a file, with the file."""
        module = () if isinstance(node, ast.Import) else _parts(node.module)
        level = 0 if isinstance(node, ast.Import) else node.level
        whole = self._find(name, module, level) if module or level else None
        for alias in node.names:
            found = self._find(name, module + _parts(alias.name), level)
            if found is None and whole is not None:
                found = Found(whole.name, whole.root, module=False)
            if found is not None:
                yield alias, found

    def _find(self, name: str, module: Parts, level: int) -> Found | None:
        """Return the file of a module that the file `name` imports, or None."""
        folder = self._folders[name]
        if level:
            end = len(folder) + 1 - level
            at = folder[:end] + module
            return Found(self._names[at], None) if end >= 0 and at in self._names else None
        for end in range(len(folder), -1, -1):
            at = folder[:end] + module
            if at in self._names:
                return Found(self._names[at], PurePath(*folder[:end]))
        return None


def _parts(path: str | None) -> Parts:
    return tuple(path.split(".")) if path else ()
