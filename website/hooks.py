"""Hooks of mkdocs: write all pages into one folder before mkdocs reads them.

The pages of docs/ and the generated pages are together in build/pages. The generated pages must be
real files, because the plugin for languages only finds files.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import causes
import commands
import pages
from mkdocs.plugins import event_priority

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[1]
ASSEMBLED = ROOT / "build" / "pages"


@event_priority(100)  # before the plugins
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the assembled pages instead of docs/, and list the causes in the navigation."""
    config.docs_dir = str(assemble())
    for entry in config.nav or []:
        if "Causes" in entry:
            entry["Causes"] = causes.navigation()
    return config


def on_post_page(output: str, **_: object) -> str:
    """Add a label to the search dialog, and make empty header cells of tables normal cells."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"').replace("<th></th>", "<td></td>")


@cache  # mkdocs calls the hook once for each language
def assemble() -> Path:
    """Write all pages into one directory, and return it."""
    shutil.rmtree(ASSEMBLED, ignore_errors=True)
    shutil.copytree(ROOT / "docs", ASSEMBLED)
    for room in (pages, causes, commands):
        for path, text in room.pages().items():
            target = ASSEMBLED / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return ASSEMBLED
