"""The tree on the architecture page is that of the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import halfstep

SOURCE = Path(halfstep.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
# Folders of which the tree describes all files in one line.
WHOLE = ("apex", "compare/output/report", "configs", "doctor/rules", "train/config")


def tree() -> dict[str, str]:
    """Return the paths in the tree below `src/halfstep`, each with its description."""
    block = PAGE.read_text().partition("```\nsrc/halfstep/\n")[2].partition("```")[0]
    described, folders = {}, {}
    for line in block.splitlines():
        entry = re.match(r"((?: {4}){1,4})(\S+)( {2,}(.*))?$", line)
        if not line.startswith("    "):
            break  # the folders beside the package
        if entry is None:
            continue  # a description that goes on
        depth = len(entry[1]) // 4
        folders[depth] = entry[2].removesuffix("/")
        described["/".join(folders[level] for level in range(1, depth + 1))] = entry[4] or ""
    return described


def test_every_entry_exists() -> None:
    missing = [path for path in tree() if not (SOURCE / path).exists()]
    assert not missing


def test_every_folder_is_in_the_tree() -> None:
    known = tree()
    folders = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")} - {"."}
    assert not {each for each in folders - known.keys() if not each.startswith(WHOLE)}


@pytest.mark.parametrize("room", ["formats", "kernels", "mechanisms", "engine", "recipe", "optim"])
def test_every_file_of_the_core_is_in_the_tree(room: str) -> None:
    files = {path.relative_to(SOURCE).as_posix() for path in (SOURCE / room).rglob("*.py")}
    assert not {path for path in files - tree().keys() if not path.endswith("__init__.py")}
