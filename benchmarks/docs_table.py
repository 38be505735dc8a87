"""Tables of the docs, written from results: between `<!-- mark -->` and `<!-- /mark -->`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DOCS = Path(__file__).parents[1] / "docs"


def put(page: str, mark: str, lines: Sequence[str]) -> None:
    """Write lines into a page of the docs.

    Args:
        page: Its file, within `docs`.
        mark: Where.
        lines: What.

    Raises:
        ValueError: If the page has no such mark.
    """
    path = DOCS / page
    text, count = re.subn(
        rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)",
        lambda found: found[1] + "".join(f"{line}\n" for line in lines) + found[2],
        path.read_text(),
        flags=re.DOTALL,
    )
    if not count:
        raise ValueError(f"docs/{page} has no <!-- {mark} -->")
    path.write_text(text)
