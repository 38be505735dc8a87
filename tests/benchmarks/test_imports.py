"""Every name of halfstep that a script imports exists, also in scripts that no test runs."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    file for folder in ("benchmarks", "website") for file in (ROOT / folder).rglob("*.py")
)


def imported(script: Path) -> set[tuple[str, str]]:
    """Return the modules of halfstep that a script imports, each with a name in it or with none."""
    found = set()
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {(node.module, each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {(each.name, "") for each in node.names}
    return {(module, name) for module, name in found if module.split(".")[0] == "halfstep"}


def exists(module: str, name: str) -> bool:
    try:
        found = importlib.import_module(module)
        return not name or hasattr(found, name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.relative_to(ROOT)))
def test_imported_names_of_halfstep_exist(script: Path) -> None:
    assert not {each for each in imported(script) if not exists(*each)}
