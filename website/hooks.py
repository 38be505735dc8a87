"""What mkdocs calls: puts the pages together before it reads them.

The pages of docs/, and those that are generated, lie side by side in build/pages. The generated
ones need real files, for the plugin of languages knows no others.
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
    """Name the dialog of the search, and let the empty corner of a table be no header."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"').replace("<th></th>", "<td></td>")


@cache  # mkdocs asks once for each language
def assemble() -> Path:
    """Put the pages together, and return their directory."""
    shutil.rmtree(ASSEMBLED, ignore_errors=True)
    shutil.copytree(ROOT / "docs", ASSEMBLED)
    for room in (pages, causes, commands):
        for path, text in room.pages().items():
            target = ASSEMBLED / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return ASSEMBLED
