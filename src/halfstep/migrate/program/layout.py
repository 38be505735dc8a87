"""Which file of a program an import refers to, found by the paths of the files alone."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


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
        self._names: dict[PurePath, str] = {}
        for name in names:
            path = PurePath(name)
            self._names[path.parent if path.stem == "__init__" else path.with_suffix("")] = name

    def imports(
        self, name: str, node: ast.Import | ast.ImportFrom
    ) -> Iterator[tuple[ast.alias, Found]]:
        """Yield each alias of an import in the file `name` that refers to a file, with the file."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                found = self._find(name, alias.name, 0)
            else:
                path = ".".join(filter(None, (node.module, alias.name)))
                found = self._find(name, path, node.level)
                whole = self._find(name, node.module or "", node.level)
                if found is None and whole is not None:
                    found = Found(whole.name, whole.root, module=False)
            if found is not None:
                yield alias, found

    def _find(self, name: str, module: str, level: int) -> Found | None:
        """Return the file of a module that the file `name` imports, or None."""
        parents, parts = PurePath(name).parents, [part for part in module.split(".") if part]
        if level:
            at = parents[level - 1].joinpath(*parts) if level <= len(parents) else None
            return Found(self._names[at], None) if at in self._names else None
        for root in parents if parts else ():
            at = root.joinpath(*parts)
            if at in self._names:
                return Found(self._names[at], root)
        return None
