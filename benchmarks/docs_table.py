"""Writes tables into pages of the docs, between `<!-- mark -->` and `<!-- /mark -->`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from docs_terms import chinese

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCS = Path(__file__).parents[1] / "docs"


def put(page: str, mark: str, lines: Sequence[str]) -> None:
    """Write lines into a page of the docs, and into its Chinese translation if that has the mark.

    In the translation, the terms that `docs_terms` has for the page are in Chinese.

    Args:
        page: The file of the page, relative to `docs`.
        mark: The name of the mark.
        lines: The lines of the table.

    Raises:
        ValueError: If the page does not have the mark.
    """
    path = DOCS / page
    translation = path.with_suffix(".zh.md")
    if not _put(path, mark, lines):
        raise ValueError(f"docs/{page} has no <!-- {mark} -->")
    if translation.exists():
        _put(translation, mark, [chinese(page, line) for line in lines])


def _put(path: Path, mark: str, lines: Sequence[str]) -> bool:
    """Write lines into one file, and tell whether it has the mark."""
    text, count = re.subn(
        rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)",
        lambda found: found[1] + "".join(f"{line}\n" for line in lines) + found[2],
        path.read_text(),
        flags=re.DOTALL,
    )
    path.write_text(text)
    return count > 0
